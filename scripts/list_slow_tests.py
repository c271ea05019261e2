"""Write the list of tests that `make test` leaves to `make test-all`, from what a run of all tests took.

Run: python -m pytest -n 2 --durations=0 > durations.txt; python scripts/list_slow_tests.py durations.txt

A test is listed if it, or a fixture that it is the first to need, takes longer than ``LIMIT`` seconds and it is not
among ``KEPT``: of every kind of failure that only real processes, clusters and browsers show, one stays. With a fixture
all tests of the file are listed that name it.
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "slow_tests.txt"
LIMIT = 2.5  # on a busy machine with two cores; about half of that on a quiet one
KEPT = (
    "tests/runtime/test_dask.py::test_the_same_bits_as_in_one_process[pooled]",
    "tests/runtime/test_recovery.py::test_workers_that_suffer_are_replaced_and_no_bit_changes[killed inside write-",
    "tests/runtime/test_recovery.py::test_workers_whose_driver_is_killed_end_at_once_and_remove_what_it_left[idle]",
    "tests/runtime/test_checkpoint_kill.py::test_killed_at_random_moments_and_resumed_the_result_is_the_same[3-effort]",
    "tests/runtime/test_executors.py",
    "tests/runtime/test_checkpoint.py::test_killed_after_every_other_task_and_resumed_the_result_is_the_same_bit_for_bit",
    "tests/runtime/test_corruption.py",
    "tests/runtime/test_effort.py::test_killed_again_and_again_the_bits_are_the_same",
    "tests/methods/test_protocol.py::test_estimates_are_unbiased_and_their_errors_right[stratified]",
    "tests/methods/test_protocol.py::test_estimates_are_unbiased_and_their_errors_right[control-variate]",
    "tests/methods/test_golden.py",
    "tests/statistical/test_effort.py::test_every_input_is_covered_where_rare_masks_matter[gate-auto-50]",
    "tests/statistical/test_effort.py::test_reported_as_ever_it_does_not_meet_the_tolerance[gate]",
    "tests/evaluation/test_runs.py::test_stopped_anywhere_and_resumed_to_the_same_bits",
    "tests/evaluation/test_evaluate.py::test_all_metrics_are_right_within_their_stated_bias_and_plug_in_is_not",
    "tests/docs/test_architecture.py",
    "tests/docs/test_code_blocks.py::test_code_blocks_run[README.md]",
    "tests/docs/test_code_blocks.py::test_code_blocks_run[docs/tutorials/own-model.md]",
    "tests/docs/test_site.py::test_faults_of_a_page_are_found",
    "tests/pinn/test_resume.py::test_interrupted_run_ends_the_same[Poisson]",
    "tests/quantities/test_runs.py::test_processes_give_the_same_bits[control-variate]",
    "tests/sampling/test_memory.py::test_estimates_of_many_rows_are_taken_part_by_part[auto-160]",
    "tests/statistical/test_patterns.py",
    "tests/statistical/test_small_budgets.py::test_intervals_cover[control-variate-20-Tanh]",
    "tests/statistical/test_quantities.py::test_quantiles_cover[pooled-logits]",
    "tests/statistical/test_tolerance.py::test_a_rule_that_looks_too_early_fails_this_test",
    "tests/statistical/test_small_budgets.py::test_intervals_twice_as_wide_are_noticed",
    "tests/stopping/test_decisions.py::test_labels_are_right_as_often_as_promised[0.1]",
    "tests/stopping/test_decisions.py::test_the_largest_are_found_as_often_as_promised",
)
_ROW = re.compile(r"\s*([\d.]+)s (call|setup)\s+(tests/\S+?\.py)::(.*\S)")


def tests_with(path: str, fixtures: set[str]) -> list[str]:
    """Test functions of a file that use one of the fixtures."""
    functions = [n for n in ast.parse((ROOT / path).read_text()).body if isinstance(n, ast.FunctionDef)]
    return [f.name for f in functions if f.name.startswith("test") and fixtures & {a.arg for a in f.args.args}]


def fixtures_of(path: str, test: str) -> set[str]:
    """Fixtures of the file that a test names."""
    functions = {n.name: n for n in ast.parse((ROOT / path).read_text()).body if isinstance(n, ast.FunctionDef)}
    return {a.arg for a in functions[test.split("[")[0]].args.args} & set(functions)


def listed(text: str, limit: float) -> list[str]:
    """Ids of slow tests; an id without brackets stands for all parameters."""
    found = set()
    for seconds, part, path, test in _ROW.findall(text):
        if float(seconds) < limit:
            continue
        names = [test] if part == "call" else tests_with(path, fixtures_of(path, test))
        found.update(f"{path}::{name}" for name in names)
    return sorted(name for name in found if not name.startswith(KEPT) and name.split("[")[0] not in found - {name})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("durations", type=Path, help="what pytest --durations=0 printed")
    parser.add_argument("--limit", type=float, default=LIMIT)
    options = parser.parse_args()
    names = listed(options.durations.read_text(), options.limit)
    LIST.write_text("".join(f"{name}\n" for name in names))
    print(f"{len(names)} tests in {LIST.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
