"""A run's records -> tables, charts and one self-contained page; decides nothing, needs no torch.

`study.reader` (a run and its verdicts) -> `records` (plain numbers, which `results` stores) -> `tables`, `charts` ->
`page`.
"""
