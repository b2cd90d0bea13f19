"""Outcomes -> what people look at: tables, charts and one self-contained page. Works from a run's store, without torch.

The way of the data: `reading` (a run's store) -> `verdict` (choice and judgement) -> `records` (plain numbers, which
`results` keeps) -> `tables`, `figures` -> `page`. Charts of the page alone are made of the verdict.
"""
