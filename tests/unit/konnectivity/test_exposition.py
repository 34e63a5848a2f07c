"""The text format, read back by prometheus-client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from nodenet.konnectivity.exposition import family, gauge, histogram


def test_a_gauge_without_labels_is_a_bare_name() -> None:
    assert gauge("open", "How many.", 3) == "# HELP open How many.\n# TYPE open gauge\nopen 3\n"


def test_a_counter_keeps_its_name() -> None:
    text = family("failure_count", "counter", "Why.", [({"reason": 'a"b\\\n'}, 2)])
    assert text.splitlines()[1:] == [
        "# TYPE failure_count counter",
        'failure_count{reason="a\\"b\\\\\\n"} 2',
    ]


def test_a_family_without_samples_is_still_named() -> None:
    assert family("x", "counter", "Y.", []) == "# HELP x Y.\n# TYPE x counter\n"


def test_a_histogram_is_cumulative() -> None:
    text = histogram("d_seconds", "D.", (1e-06, 0.5, 2.5), [({"m": "p"}, [1, 0, 2, 3], 9.25)])
    (found,) = text_string_to_metric_families(text)
    values = {(s.name, s.labels.get("le")): s.value for s in found.samples}
    assert values == {
        ("d_seconds_bucket", "1e-06"): 1,
        ("d_seconds_bucket", "0.5"): 1,
        ("d_seconds_bucket", "2.5"): 3,
        ("d_seconds_bucket", "+Inf"): 6,
        ("d_seconds_sum", None): 9.25,
        ("d_seconds_count", None): 6,
    }
