//! A worker records without allocating, and what finds no room is counted.

#![allow(clippy::disallowed_types, reason = "no worker runs here")]

use std::sync::Arc;
use std::time::Duration;

use weir_telemetry::metrics::{Metrics, MetricsOptions};
use weir_usage::{Arguments, Keep, Options, Record, Usage};

fn open(ring: usize, folder: &tempfile::TempDir) -> (Arc<Usage>, Arc<Metrics>) {
    let metrics = Metrics::new(MetricsOptions::default());
    let options = Options {
        path: folder.path().join("usage.db"),
        ring,
        series: 100,
        metric_apis: 2,
        // Longer ago than any record here: what is written early is put in order while the rest is recorded.
        keep: Keep { minutes: 100_000, hours: 100_000, days: 100_000, size: u64::MAX },
        at_start: Box::new(|| {}),
    };
    (Usage::open(options, Arc::clone(&metrics)).expect("usage"), metrics)
}

fn value(metrics: &Arc<Metrics>, line: &str) -> Option<u64> {
    let mut page = String::new();
    metrics.render(&mut page);
    page.lines().find_map(|text| text.strip_prefix(line)?.trim().parse().ok())
}

#[test]
fn a_worker_records_without_allocating_and_each_record_is_counted_or_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let (usage, metrics) = open(1024, &folder);
    let api = metrics.labels().intern("a");
    let writer = usage.writer();
    let record = Record { unix_ms: 1_769_817_600_000, api, status: 200, ..Record::default() };
    writer.record(record);
    // More than the ring holds.
    let counted = allocation_counter::measure(|| (0..100_000).for_each(|_| writer.record(record)));
    assert_eq!(counted.count_total, 0);
    drop(writer);
    assert!(usage.close(Duration::from_secs(20)));
    let lost = value(&metrics, "weir_usage_lost_total").expect("a value");
    let kept = value(&metrics, "weir_usage_requests_total{api=\"a\",status=\"2xx\"}").expect("a value");
    assert_eq!(kept + lost, 100_001);
    let ask = [("from", "1769817600"), ("to", "1769817660")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    let found = usage.ask(&Arguments(ask.into())).expect("an answer").text;
    assert!(found.contains(&format!("\"requests\":{kept},")), "{kept} were kept: {found}");
}

#[test]
fn apis_beyond_the_bound_share_a_line_of_the_metrics() {
    let folder = tempfile::tempdir().expect("a folder");
    let (usage, metrics) = open(1024, &folder);
    let writer = usage.writer();
    for number in 0..10 {
        let api = metrics.labels().intern(&format!("a{number}"));
        writer.record(Record { unix_ms: 1_769_817_600_000, api, status: 404, sent: 7, ..Record::default() });
    }
    assert!(usage.close(Duration::from_secs(20)));
    assert_eq!(value(&metrics, "weir_usage_requests_total{api=\"a1\",status=\"4xx\"}"), Some(1));
    assert_eq!(value(&metrics, "weir_usage_sent_bytes_total{api=\"(others)\",status=\"4xx\"}"), Some(56));
    assert_eq!(value(&metrics, "weir_usage_requests_total{api=\"a2\",status=\"4xx\"}"), None);
}
