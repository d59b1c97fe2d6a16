//! Recording and logging do not allocate once a worker has seen a series and a line.

use std::net::IpAddr;

use weir_expr::{Source, Value, Variable};
use weir_telemetry::access_log::{AccessLog, AccessLogOptions, Format, Target};
use weir_telemetry::metrics::{
    ClientError, ConnectionState, HttpSeries, LazyLabel, Metrics, MetricsOptions, Recorder, ResponseSource, Sample,
    UpstreamState,
};

fn allocations(run: impl FnOnce()) -> u64 {
    allocation_counter::measure(run).count_total
}

fn record(recorder: &Recorder, consumer: &LazyLabel, routes: &[HttpSeries]) {
    let sample = Sample { request_us: 900, upstream_us: Some(800), gateway_us: 100, ingress_bytes: 1, egress_bytes: 2 };
    recorder.connection_accepted();
    recorder.connection_opened(ConnectionState::Waiting);
    recorder.upstream_opened(UpstreamState::Active);
    for series in routes {
        recorder.request_started();
        recorder.connection_moved(ConnectionState::Waiting, ConnectionState::Reading);
        recorder.upstream_moved(UpstreamState::Active, UpstreamState::Idle);
        let consumer = recorder.labels().lazy(consumer, || "jack");
        recorder.http(&HttpSeries { consumer, ..*series }, &sample);
        recorder.connection_moved(ConnectionState::Reading, ConnectionState::Waiting);
        recorder.client_error(ClientError::BadRequest);
    }
    recorder.worker_panicked();
    recorder.upstream_closed(UpstreamState::Idle);
    recorder.connection_closed(ConnectionState::Waiting);
}

#[test]
fn recording_known_series_allocates_nothing() {
    // With room for all series, and with most of them counted as other.
    for max_series in [1000, 3] {
        let metrics = Metrics::new(MetricsOptions { max_series, ..MetricsOptions::default() });
        let recorder = metrics.recorder();
        let consumer = LazyLabel::new();
        let routes: Vec<HttpSeries> = (0..100)
            .map(|index| HttpSeries {
                route: metrics.labels().intern(&format!("r{index}")),
                ..HttpSeries::unmatched(200, ResponseSource::Upstream)
            })
            .collect();
        assert!(allocations(|| record(&recorder, &consumer, &routes)) > 0, "the counter counts");
        assert_eq!(allocations(|| record(&recorder, &consumer, &routes)), 0, "with room for {max_series}");
    }
}

/// A request that sets every requested variable.
struct Request;

impl Source for Request {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        match variable {
            Variable::Status => Some(Value::Number(200)),
            Variable::RequestTime => Some(Value::Millis(1234)),
            Variable::RemoteAddr => Some(Value::Ip(IpAddr::from([203, 0, 113, 255]))),
            Variable::ServiceId => None,
            _ => Some(Value::Bytes("some \"text\" that is not\tplain: ü\u{0}".as_bytes())),
        }
    }
}

#[test]
fn logging_allocates_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    for (index, setting) in ["json", "combined", "$remote_addr $http_x [$request_time]"].into_iter().enumerate() {
        let log = AccessLog::open(AccessLogOptions {
            target: Target::File(directory.path().join(index.to_string())),
            format: Format::parse(setting, false).0,
            mode: 0o600,
            ring_bytes: 16 * 1024, // small enough to be found half full and full
        })
        .expect("a log");
        let writer = log.writer();
        for _ in 0..3 {
            writer.write(&Request);
        }
        let count = allocations(|| (0..500).for_each(|_| writer.write(&Request)));
        assert_eq!(count, 0, "{setting}");
    }
}
