"""Images of every mode come out upright, 8-bit and alike; sizes by the documented rule; all cores alike."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from camri.data import load, parallel
from camri.data.decode import _choose_shape, to_array
from camri.errors import InputError

from .pictures import picture, write_folder, write_picture

GREY = picture(1, channels=1)[..., 0]
COLOUR = picture(2)


def decoded(image: Image.Image, form: str, channels: int = 3, **options: object) -> np.ndarray:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return to_array(memoryview(stream.getvalue()), (image.height, image.width, channels), None)


def test_grey_becomes_three_equal_channels() -> None:
    assert np.array_equal(decoded(Image.fromarray(GREY), "PNG"), np.stack([GREY] * 3, axis=-1))


def test_palette() -> None:
    image = Image.fromarray(COLOUR).quantize(8)
    assert np.array_equal(decoded(image, "PNG"), np.asarray(image.convert("RGB")))


def test_alpha_is_laid_on_white() -> None:
    alpha = np.zeros(GREY.shape, np.uint8)
    alpha[0], alpha[1] = 255, 128
    out = decoded(Image.fromarray(np.dstack([COLOUR, alpha])), "PNG").astype(int)
    assert np.array_equal(out[0], COLOUR[0])
    assert np.abs(out[1] - (COLOUR[1] * (128 / 255) + 255 * (127 / 255))).max() <= 1
    assert (out[2:] == 255).all()


def test_grey_with_alpha_stays_grey() -> None:
    alpha = np.zeros(GREY.shape, np.uint8)
    alpha[0] = 255
    image = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha)])
    out = decoded(image, "PNG", channels=1)[..., 0]
    assert np.array_equal(out[0], GREY[0])
    assert (out[1:] == 255).all()


def test_transparent_palette_colour_is_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert decoded(image, "PNG", transparency=0).tolist() == [[[255, 255, 255], [40, 50, 60]]]


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    assert decoded(Image.fromarray(values), "PNG", channels=1)[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    assert decoded(Image.fromarray(values), "TIFF", channels=1)[0, :, 0].tolist() == [0, 0, 1, 128, 255]


def test_one_bit() -> None:
    image = Image.fromarray(np.array([[True, False]]))
    assert decoded(image, "PNG", channels=1)[0, :, 0].tolist() == [255, 0]


def test_cmyk() -> None:
    image = Image.new("CMYK", (4, 4), (0, 255, 255, 0))
    assert decoded(image, "TIFF")[0, 0].tolist() == [255, 0, 0]


def test_exif_rotation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the picture's top is at the stored right
    stream = io.BytesIO()
    Image.fromarray(COLOUR).save(stream, "PNG", exif=exif)
    upright = to_array(memoryview(stream.getvalue()), (5, 6, 3), None)
    assert np.array_equal(upright, np.rot90(COLOUR, -1))


def test_exif_data_behind_the_pixels_and_xmp_turn_an_image_too() -> None:
    exif, streams = Image.Exif(), [io.BytesIO(), io.BytesIO()]
    exif[0x0112] = 6
    Image.fromarray(COLOUR).save(streams[0], "PNG", exif=exif)
    head, _, rest = streams[0].getvalue().partition(b"IDAT")  # chunks: length, name, content, checksum
    start, end = head.index(b"eXIf") - 4, len(head) - 4
    late = head[:start] + head[end:] + b"IDAT" + rest[:-12] + head[start:end] + rest[-12:]
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
    Image.fromarray(COLOUR).save(streams[1], "WEBP", lossless=True, xmp=xmp)
    for data in (late, streams[1].getvalue()):
        assert np.array_equal(to_array(memoryview(data), (5, 6, 3), None), np.rot90(COLOUR, -1))


def test_float_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match="its pixels are floats"):
        decoded(Image.fromarray(np.zeros((2, 2), np.float32)), "TIFF")


def test_a_folder_of_all_modes_is_rgb_and_an_all_grey_one_is_grey(tmp_path: Path) -> None:
    modes = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16")
    for k, mode in enumerate(modes):
        suffix = "tiff" if mode == "CMYK" else "png"
        image = (
            Image.fromarray(np.full((6, 5), 40_000, np.uint16))
            if mode == "I;16"
            else Image.fromarray(COLOUR).convert(mode)
        )
        (tmp_path / "mixed" / f"{k % 2}").mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "mixed" / f"{k % 2}" / f"{k}.{suffix}")
    data = load(tmp_path / "mixed")
    assert data.input_shape == (6, 5, 3)
    pixels = {name: image.numpy() for name, image in zip("0246" + "1357", data.splits["train"].inputs, strict=True)}
    assert np.array_equal(pixels["4"], COLOUR)
    assert np.array_equal(pixels["1"], np.stack([np.asarray(Image.fromarray(COLOUR).convert("L"))] * 3, axis=-1))
    assert (pixels["7"] == 40_000 >> 8).all()
    for k, mode in enumerate(("1", "L", "LA")):
        write = tmp_path / "grey" / f"{k % 2}"
        write.mkdir(parents=True, exist_ok=True)
        Image.fromarray(GREY).convert(mode).save(write / f"{k}.png")
    assert load(tmp_path / "grey").input_shape == (6, 5, 1)


# Sizes


def test_mixed_sizes_are_resized_by_the_median_and_it_is_noted(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 2}, height=20, width=30)
    write_folder(tmp_path, {"b": 1}, height=41, width=17)
    with pytest.warns(UserWarning, match=r"of 17x20 to 30x41 pixels .* resized to 32x32; .* give size="):
        data = load(tmp_path)
    assert data.input_shape == (32, 32, 3)
    expected = Image.open(tmp_path / "a" / "000.png").resize((32, 32), Image.Resampling.LANCZOS)
    assert np.array_equal(data.splits["train"].inputs[0].numpy(), np.asarray(expected))
    with pytest.warns(UserWarning, match="resized to 32x32"):
        load(tmp_path)  # from the cache it is said again


def test_large_images_of_one_size_name_it_once(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": 2, "b": 1}, height=80, width=96)
    with pytest.warns(UserWarning, match="images of 96x80 pixels"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "cropped", "shape"),
    [
        ([(64, 64)] * 2, False, (64, 64)),
        ([(30, 40)] * 2, False, (30, 40)),
        ([(30, 40)] * 2, True, (40, 40)),  # crops differ in size, whatever their images do
        ([(65, 20)] * 2, False, (64, 64)),
        ([(20, 65)] * 2, False, (64, 64)),
        ([(20, 30), (20, 31)], False, (32, 32)),
        ([(30, 20), (31, 20)], False, (32, 32)),
        ([(9, 50), (51, 9), (52, 9)], False, (48, 48)),  # the median of the longer sides, to a multiple of 8
        ([(2, 3), (3, 3)], False, (8, 8)),
    ],
)
def test_the_size_of_all_images_is_theirs_or_the_median_side_up_to_64(
    sizes: list[tuple[int, int]], cropped: bool, shape: tuple[int, int]
) -> None:
    probed = np.array([(*size, True, False) for size in sizes])
    found, note = _choose_shape(probed, None, cropped)
    assert found == (*shape, 1)
    assert ("size_note" in note) == (cropped or shape not in sizes)
    probed[1, 2] = False  # one of them has colours
    assert _choose_shape(probed, None, cropped)[0] == (*shape, 3)
    assert _choose_shape(probed, (5, 7), cropped) == ((5, 7, 3), {})


@pytest.mark.parametrize(("size", "shape"), [(9, (9, 9, 3)), ((7, 11), (7, 11, 3))])
def test_a_size_can_be_asked_for(
    tmp_path: Path, size: object, shape: tuple[int, ...], recwarn: pytest.WarningsRecorder
) -> None:
    write_folder(tmp_path, {"a": 1, "b": 1}, height=20, width=20)
    assert load(tmp_path, size=size).input_shape == shape  # type: ignore[arg-type]
    assert not recwarn.list


def test_downscaling_is_antialiased(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    for name in "ab":
        write_picture(tmp_path / name / "1.png", stripes)
    inner = load(tmp_path, size=16).splits["train"].inputs[0, :, 2:-2].float()
    assert (inner - 127.5).abs().max() < 10  # the nearest pixel would be 0 or 255


# All cores


@pytest.mark.parametrize("way", ["serial", "processes", "threads"])
def test_every_row_is_done_once_and_complaints_keep_their_rows(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    num_rows = 1000
    monkeypatch.setattr(parallel, "num_cores", lambda: 1 if way == "serial" else 3)
    if way == "threads":
        monkeypatch.setattr(parallel.sys, "platform", "darwin")
    times = parallel.shared_array((num_rows,), np.int64)
    told: list[tuple[int, int]] = []

    def work(row: int) -> None:
        times[row] += 1
        if row % 333 == 0:
            raise ValueError(f"row {row}")

    complaints = parallel.for_each(num_rows, work, lambda done, total: told.append((done, total)))
    assert times.tolist() == [1] * num_rows
    assert complaints == {row: f"row {row}" for row in (0, 333, 666, 999)}
    assert told[-1] == (num_rows, num_rows)


@pytest.mark.skipif(parallel.sys.platform != "linux", reason="processes are forked on Linux only")
def test_a_killed_process_is_an_error_not_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    monkeypatch.setattr(parallel, "num_cores", lambda: 2)

    def work(row: int) -> None:
        if row == 700:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(InputError, match="5 processes that decode images died, the last with exit code -9"):
        parallel.for_each(1000, work)


@pytest.mark.skipif(parallel.sys.platform != "linux", reason="processes are forked on Linux only")
def test_a_process_that_was_killed_once_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os
    import signal

    monkeypatch.setattr(parallel, "num_cores", lambda: 2)
    seen, told = parallel.shared_array((1000,), np.int64), []

    def work(row: int) -> None:
        seen[row] = row
        if row == 700 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    assert parallel.for_each(1000, work, lambda done, num: told.append(done)) == {}
    assert seen.tolist() == list(range(1000))
    assert told[-1] == 1000


STOPPED = """
import os, sys, time
from pathlib import Path
from camri.data import parallel

parallel.num_cores = lambda: 2
def work(row):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(0.02)
parallel.for_each(2_000, work)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads decode")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_decoding_processes_end_with_the_one_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    pids, told = tmp_path / "pids", tmp_path / "stderr"
    pids.mkdir()
    with told.open("w") as stderr:
        parent = subprocess.Popen([sys.executable, "-c", STOPPED, str(pids)], stderr=stderr, start_new_session=True)
    while len(list(pids.iterdir())) < 2:
        time.sleep(0.02)
        assert parent.poll() is None
    time.sleep(0.3)  # an interrupt that comes within the fork itself is lost by Python
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)  # as a terminal does it
    else:
        parent.send_signal(number)
    parent.wait()
    for child in pids.iterdir():
        for _ in range(250):
            if not is_running(int(child.name)):
                break
            time.sleep(0.02)
        else:
            pytest.fail(f"process {child.name} goes on")
    assert "Process" not in told.read_text()  # of the children's ends nothing is printed
