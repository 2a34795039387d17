"""Reproduction of the I-EDL paper (Deng et al., ICML 2023): every table, ours beside the paper's.

    python -m reproduction --list          # tables and recipes, and their records
    python -m reproduction tab_conf        # run the missing records of a table
    python -m reproduction --report        # all tables and figures from the records
    python -m reproduction comparison      # many methods by one protocol, beyond the paper

| module | content |
| --- | --- |
| recipes | recipes/*.toml with inheritance, and the ids of records |
| store | records in results/, compressed |
| runner | one process, several, or a Ray cluster |
| training, episodes | from a recipe to its records |
| comparison, comparison_data, comparison_page | many methods by one protocol: comparison.toml |
| pickles | published few-shot features to .npz |
| published, tables, fewshot, summary | our numbers beside published.toml |
| figures, stopping, report | figures, the study of when to stop, files and pages |
"""
