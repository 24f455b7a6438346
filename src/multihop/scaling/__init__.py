"""Beyond one machine: shards of the questions fill stores, which are merged; then `dvc repro` replays."""
