"""Is there a class-sensitive training whose whole recall–accuracy curve lies above shifted cross-entropy's?

    python -m benchmarks.prize --device cuda --folder runs/prize --max-wall 480 --train-only  # give it again to go on
    python -m benchmarks.prize --judge runs/prize --out prize.json                            # no training, no GPU
    python -m benchmarks.prize --device cpu --data digits --important 8 --epochs 2 --seeds 0-3 --ensemble 2 \
        --folder runs/prize-digits                                                            # everything once

Everything trains as the `fast` schedule does with the small CNN: its first values, order of rows, optimiser, rate and
ramp come from camri.engine, so that arms of one seed differ in what their name says and in nothing else. The arms
(`--arms` takes names or letters; cross-entropy always comes first, since the others need it):

    controls  ce, l2softmax (s=8), camri (m=4π/64, s=8)
    a         two_sided_0.1, two_sided_0.2: a cosine margin on both sides of the important class's boundary
    b         hardest_0.1, hardest_0.2: a cosine margin of the important class against its strongest rival, by image
    d         head_ce, head_l2softmax, head_camri, head_wce: a new head on the frozen trunk of cross-entropy,
              trained for as many epochs
    c         learned_final, learned_epoch: CAMRI whose margin follows validation accuracy less cross-entropy's, as it
              is at the end of its training or after the same epoch
    e         sam, sam_important: sharpness-aware steps, uphill on the whole batch or on the important class's images
    f         ensemble_ce, ensemble_l2softmax, ensemble_camri: mean probabilities of five models; nothing is trained
    g         distilled_ce, distilled_l2softmax, distilled_camri: half the loss is cross-entropy with the probabilities
              of five cross-entropy models of other seeds. A margin makes no sense with a soft target: it stays in the
              half with hard labels, and the soft half sees the logits without it.

`--folder` keeps a file for each trial as it ends; the same call again goes on with what is missing. On a GPU several
seeds of an arm train as branches of one captured CUDA graph; where that fails the arm trains eagerly, with a warning.

Printed: on stdout (and in `--out`) JSON with, for every arm, recall and accuracy as trained (mean, sd, n) and its
accuracy at equal recall against cross-entropy, against cross-entropy under the same training (head_ce, sam, …) and
against the same without a margin: mean over the range and at both ends, with 95 % intervals over seeds and images, in
parts of 1; on stderr the same as a table in points of a hundred. The range of recalls is that of `ce` throughout.
`validation` has the same gap on validation images, for whoever picks one of several arms before looking at test images.
"""
