//! The figures of the gateway, second by second: kept for an hour, and told to whoever watches.
//!
//! ```text
//! Metrics::figures ──► a frame each second ──► the last hour, and streams at /weir/v1/live
//! Metrics::take_seen ─► samples of requests ──► the busiest routes, and streams at /weir/v1/requests
//! ```
//!
//! Without watchers a second costs one look at the counters and two files of the kernel. Times of requests are known only
//! while somebody watches, or where something else takes them (the access log, the usage, a plugin that logs).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval};
use weir_telemetry::metrics::{Figures, Label, Metrics, Seen, Watching};

/// Frames that are kept: an hour.
const KEPT: usize = 3600;
/// Interval at which samples are taken while somebody watches. The rings of workers are made for it.
const SAMPLE: Duration = Duration::from_millis(250);
const FRAME: Duration = Duration::from_secs(1);
/// Frames and batches that a slow reader may be behind; older ones are left out for it.
const BEHIND: usize = 16;
/// Seconds over which the busiest routes are counted.
const WINDOW: usize = 10;
/// Rows of the busiest.
const ROWS: usize = 8;

/// The figures of a second.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frame {
    /// Seconds since 1970.
    pub(crate) time: f64,
    /// Values by position in [`COLUMNS`]; `None` where there were none.
    values: [Option<f64>; COLUMNS.len()],
}

/// Names of the values of a frame.
pub(crate) const COLUMNS: [&str; 21] = [
    "rps",
    "s1",
    "s2",
    "s3",
    "s4",
    "s5",
    "p50",
    "p95",
    "p99",
    "up50",
    "up95",
    "up99",
    "own50",
    "own99",
    "connections",
    "waiting",
    "up_active",
    "up_idle",
    "cpu",
    "memory",
    "revision",
];

/// The figures as they come.
#[derive(Debug)]
pub struct Pulse {
    metrics: Arc<Metrics>,
    frames: Mutex<VecDeque<Arc<Frame>>>,
    live: broadcast::Sender<(Arc<Frame>, Arc<Value>)>,
    samples: broadcast::Sender<Arc<Vec<Seen>>>,
    watching: Mutex<Weak<Watching>>,
}

impl Pulse {
    /// The pulse of the gateway with these metrics, which [`Self::run`] keeps going.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            frames: Mutex::new(VecDeque::with_capacity(KEPT)),
            live: broadcast::Sender::new(BEHIND),
            samples: broadcast::Sender::new(BEHIND),
            watching: Mutex::new(Weak::new()),
        })
    }

    /// Takes figures, for ever.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = interval(SAMPLE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut before, mut last) = (self.metrics.figures(), Instant::now());
        let mut window = Window::default();
        loop {
            ticks.tick().await;
            let watched = lock(&self.watching).strong_count() > 0;
            if watched {
                let mut seen = Vec::new();
                self.metrics.take_seen(&mut seen);
                window.add(&seen);
                if !seen.is_empty() && self.samples.receiver_count() > 0 {
                    let _ = self.samples.send(Arc::new(seen));
                }
            }
            let passed = last.elapsed();
            if passed < FRAME - SAMPLE / 2 {
                continue;
            }
            let now = self.metrics.figures();
            let frame = Arc::new(Frame::between(&before, &now, passed));
            let mut frames = lock(&self.frames);
            if frames.len() == KEPT {
                frames.pop_front();
            }
            frames.push_back(Arc::clone(&frame));
            drop(frames);
            if self.live.receiver_count() > 0 {
                let rate = frame.values[0].unwrap_or_default();
                let _ = self.live.send((frame, Arc::new(window.told(&self.metrics, rate))));
            }
            window.turn();
            (before, last) = (now, Instant::now());
        }
    }

    /// Begins to watch: the frames to come, with the busiest routes and consumers of each.
    pub(crate) fn watch(&self) -> (Arc<Watching>, broadcast::Receiver<(Arc<Frame>, Arc<Value>)>) {
        (self.watching(), self.live.subscribe())
    }

    /// Begins to watch requests.
    pub(crate) fn watch_requests(&self) -> (Arc<Watching>, broadcast::Receiver<Arc<Vec<Seen>>>) {
        (self.watching(), self.samples.subscribe())
    }

    fn watching(&self) -> Arc<Watching> {
        let mut current = lock(&self.watching);
        current.upgrade().unwrap_or_else(|| {
            let watching = Arc::new(self.metrics.watch());
            *current = Arc::downgrade(&watching);
            watching
        })
    }

    /// The last hour, as one list for each column.
    pub(crate) fn history(&self) -> Value {
        let frames: Vec<Arc<Frame>> = lock(&self.frames).iter().cloned().collect();
        let mut told = serde_json::Map::new();
        told.insert("t".into(), frames.iter().map(|frame| frame.time).collect());
        for (at, name) in COLUMNS.into_iter().enumerate() {
            let column = frames.iter().map(|frame| frame.values.get(at).copied().flatten());
            told.insert(name.into(), column.map(rounded).collect());
        }
        told.into()
    }

    /// The metrics.
    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

impl Frame {
    fn between(before: &Figures, now: &Figures, passed: Duration) -> Self {
        let seconds = passed.as_secs_f64().max(0.001);
        let rate = |now: u64, before: u64| Some(now.wrapping_sub(before) as f64 / seconds);
        let (total, upstream, own) =
            (now.total.since(&before.total), now.upstream.since(&before.upstream), now.gateway.since(&before.gateway));
        let class = |at: usize| rate(now.answers.get(at).copied()?, before.answers.get(at).copied()?);
        let cpu =
            now.cpu_seconds.zip(before.cpu_seconds).map(|(now, before)| 100.0 * (now - before).max(0.0) / seconds);
        let values = [
            rate(now.clients.requests, before.clients.requests),
            class(0),
            class(1),
            class(2),
            class(3),
            class(4),
            total.percentile_ms(50.0),
            total.percentile_ms(95.0),
            total.percentile_ms(99.0),
            upstream.percentile_ms(50.0),
            upstream.percentile_ms(95.0),
            upstream.percentile_ms(99.0),
            own.percentile_ms(50.0),
            own.percentile_ms(99.0),
            Some(now.clients.active as f64),
            Some(now.clients.waiting as f64),
            Some(now.upstream_active as f64),
            Some(now.upstream_idle as f64),
            cpu,
            now.resident_bytes.map(|bytes| bytes as f64),
            Some(now.revision as f64),
        ];
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1000.0;
        Self { time, values }
    }

    /// The frame as an object.
    pub(crate) fn told(&self) -> Value {
        let mut told = serde_json::Map::new();
        told.insert("t".into(), self.time.into());
        for (name, value) in COLUMNS.into_iter().zip(self.values) {
            told.insert(name.into(), rounded(value));
        }
        told.into()
    }
}

/// A number with three digits after the point, as a whole number where it is one.
fn rounded(value: Option<f64>) -> Value {
    match value {
        None => Value::Null,
        Some(value) if value.fract() == 0.0 && value.abs() < 9e15 => (value as i64).into(),
        Some(value) => ((value * 1000.0).round() / 1000.0).into(),
    }
}

/// Sums of the samples of the last seconds, by route and by consumer.
#[derive(Debug, Default)]
struct Window {
    seconds: VecDeque<[HashMap<Label, Sums>; 2]>,
    current: [HashMap<Label, Sums>; 2],
}

#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    requests: u64,
    errors: u64,
    latency_us: u64,
}

impl Window {
    fn add(&mut self, seen: &[Seen]) {
        for sample in seen {
            for (sums, label) in self.current.iter_mut().zip([sample.route, sample.consumer]) {
                let sums = sums.entry(label).or_default();
                sums.requests += 1;
                sums.errors += u64::from(sample.status >= 500);
                sums.latency_us += u64::from(sample.latency_us);
            }
        }
    }

    /// A second has passed.
    fn turn(&mut self) {
        self.seconds.push_back(std::mem::take(&mut self.current));
        while self.seconds.len() > WINDOW {
            self.seconds.pop_front();
        }
    }

    /// The busiest routes and consumers; `rate` is the number of all requests a second.
    fn told(&self, metrics: &Metrics, rate: f64) -> Value {
        let rows = |which: usize| {
            let mut all: HashMap<Label, Sums> = HashMap::new();
            for second in self.seconds.iter().chain([&self.current]) {
                for (label, sums) in second.get(which).into_iter().flatten() {
                    let total = all.entry(*label).or_default();
                    total.requests += sums.requests;
                    total.errors += sums.errors;
                    total.latency_us += sums.latency_us;
                }
            }
            let samples = all.values().map(|sums| sums.requests).sum::<u64>().max(1) as f64;
            let mut rows: Vec<(Label, Sums)> = all.into_iter().filter(|(label, _)| *label != Label::EMPTY).collect();
            rows.sort_by(|(one, a), (two, b)| b.requests.cmp(&a.requests).then_with(|| one.cmp(two)));
            rows.truncate(ROWS);
            let row = |(label, sums): (Label, Sums)| {
                let requests = sums.requests.max(1) as f64;
                json!({
                    "id": metrics.labels().text(label),
                    "rps": rounded(Some(rate * sums.requests as f64 / samples)),
                    "errors": rounded(Some(sums.errors as f64 / requests)),
                    "ms": rounded(Some(sums.latency_us as f64 / requests / 1000.0)),
                })
            };
            rows.into_iter().map(row).collect::<Vec<Value>>()
        };
        json!({ "routes": rows(0), "consumers": rows(1) })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_telemetry::metrics::{Metrics, MetricsOptions, Seen};

    use super::{Frame, Window};

    #[test]
    fn a_frame_tells_rates_shares_and_percentiles_of_its_second() {
        let metrics = Metrics::new(MetricsOptions::default());
        let recorder = metrics.recorder();
        let before = metrics.figures();
        for _ in 0..50 {
            recorder.request_started();
            recorder.answered(200);
            recorder.took(4000, Some(3000));
        }
        recorder.answered(503);
        let told = Frame::between(&before, &metrics.figures(), Duration::from_millis(500)).told();
        assert_eq!((&told["rps"], &told["s2"], &told["s5"]), (&100.into(), &100.into(), &2.into()), "{told}");
        let near = |name: &str, wanted: f64| (told[name].as_f64().unwrap_or_default() - wanted).abs() < wanted / 12.0;
        assert!(near("p50", 4.0) && near("up99", 3.0) && near("own50", 1.0), "{told}");
        let idle = Frame::between(&before, &before, Duration::from_secs(1)).told();
        assert!(idle["p50"].is_null() && idle["rps"] == 0 && idle["memory"].is_i64(), "{idle}");
    }

    #[test]
    fn the_busiest_are_those_of_the_last_seconds() {
        let metrics = Metrics::new(MetricsOptions::default());
        let (a, b) = (metrics.labels().intern("a"), metrics.labels().intern("b"));
        let seen = |route, status| Seen { route, status, latency_us: 2000, ..Seen::default() };
        let mut window = Window::default();
        window.add(&[seen(a, 200), seen(b, 200), seen(b, 500), seen(b, 200)]);
        let told = window.told(&metrics, 40.0);
        assert_eq!(told["routes"][0]["id"], "b", "{told}");
        assert_eq!((&told["routes"][0]["rps"], &told["routes"][1]["rps"]), (&30.into(), &10.into()), "{told}");
        assert_eq!((&told["routes"][1]["errors"], &told["routes"][1]["ms"]), (&0.into(), &2.into()), "{told}");
        assert!(told["consumers"].as_array().is_some_and(Vec::is_empty), "nobody is no consumer: {told}");
        for _ in 0..11 {
            window.turn();
        }
        assert!(window.told(&metrics, 0.0)["routes"].as_array().is_some_and(Vec::is_empty));
    }
}
