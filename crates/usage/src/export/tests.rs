//! Minutes that are handed over once, again after a change, and again after a failure.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{ExportTotals, Exporter, Minute, Progress, Sink};
use crate::block::Slots;
use crate::database::Database;
use crate::histogram::bucket;
use crate::table::{Cell, Series};

/// A target that keeps what it has, by minute, and the number of calls. Fails while `broken` is true.
#[derive(Debug, Default, Clone)]
struct Target(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    minutes: BTreeMap<u64, Minute>,
    calls: usize,
    broken: bool,
}

impl Sink for Target {
    fn put(&mut self, minutes: &[Minute]) -> Result<(), String> {
        let mut kept = self.0.lock().expect("kept");
        kept.calls += 1;
        if kept.broken {
            return Err("away".to_owned());
        }
        kept.minutes.extend(minutes.iter().map(|minute| (minute.start / 60, minute.clone())));
        Ok(())
    }
}

impl Target {
    fn requests(&self) -> u64 {
        self.0.lock().expect("kept").minutes.values().map(super::requests).sum()
    }

    fn calls(&self) -> usize {
        std::mem::take(&mut self.0.lock().expect("kept").calls)
    }
}

fn exporter(folder: &Path, target: &Target) -> Exporter {
    let progress = Progress::open(&folder.join("exports.db"), "t").expect("progress");
    Exporter {
        name: "t".into(),
        usage: folder.join("usage.db"),
        progress,
        sink: Box::new(target.clone()),
        is_failing: false,
    }
}

fn piece(minute: u64, api: &str, requests: u64) -> (u64, Slots) {
    let mut cell = Cell { requests, received: 10, sent: 20, latency: 3_000, upstream: 2_000, ..Cell::default() };
    cell.latencies.add(bucket(3_000), requests);
    let values = [api, "r", "c", "k", "p"].map(Arc::from);
    let cells = BTreeMap::from([(0, cell)]);
    (minute, Slots::from([(Series { values, class: 2 }, cells)]))
}

/// A minute that is long ago, and an hour's beginning.
const OLD: u64 = 28_000_020 / 60 * 60;

#[test]
fn minutes_are_handed_over_once_and_again_after_a_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut usage = Database::open(&folder.path().join("usage.db")).expect("a database");
    let (target, totals) = (Target::default(), ExportTotals::default());
    let mut exporter = exporter(folder.path(), &target);
    let now = OLD + 200;
    exporter.round(now, &totals).expect("nothing to do");
    assert_eq!(target.calls(), 0);
    usage.add(&[piece(OLD, "a", 5), piece(OLD, "b", 1), piece(OLD + 61, "a", 7), piece(now, "a", 2)]).expect("sums");
    exporter.round(now, &totals).expect("a round");
    assert_eq!((target.requests(), target.calls()), (15, 3), "an hour at a time");
    {
        let kept = target.0.lock().expect("kept");
        let [first, second] = &kept.minutes[&OLD].rows[..] else { panic!("{kept:?}") };
        assert_eq!((&*first.dimensions[0], &first.sums[..3], first.class), ("a", &[5, 10, 20][..], 2));
        // Times are rounded in storage.
        assert!((2_900..3_100).contains(&first.sums[3]) && (1_900..2_100).contains(&first.sums[4]), "{first:?}");
        assert_eq!(&*second.dimensions[0], "b");
        assert!((2_900..3_100).contains(&first.percentiles[1]), "{first:?}");
        assert_eq!(kept.minutes[&OLD].start, OLD * 60);
    }
    exporter.round(now, &totals).expect("a round");
    assert_eq!(target.calls(), 0, "nothing has changed");
    // A later record replaces the minute; one for a settled minute stays out.
    usage.add(&[piece(now, "a", 3), piece(now, "c", 1), piece(OLD, "a", 100)]).expect("sums");
    exporter.round(now, &totals).expect("a round");
    assert_eq!((target.requests(), target.calls()), (19, 1));
    assert_eq!(totals.rows.into_inner(), 4 + 2);
    // Pieces that are put together are the same sums.
    let keep = crate::Keep { minutes: 100_000, hours: 100_000, days: 100_000, size: u64::MAX };
    usage.tidy((now + 130) * 60, 1000, &keep).expect("tidy");
    exporter.round(now, &ExportTotals::default()).expect("a round");
    assert_eq!((target.requests(), target.calls()), (19, 0));
}

#[test]
fn nothing_is_lost_by_a_target_that_is_away_or_a_process_that_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut usage = Database::open(&folder.path().join("usage.db")).expect("a database");
    let (target, totals) = (Target::default(), ExportTotals::default());
    usage.add(&[piece(OLD, "a", 5)]).expect("sums");
    exporter(folder.path(), &target).round(OLD, &totals).expect("a round");
    target.0.lock().expect("kept").broken = true;
    usage.add(&[piece(OLD, "a", 1), piece(OLD + 3000, "a", 7)]).expect("sums");
    let mut second = exporter(folder.path(), &target);
    assert_eq!(second.round(OLD + 3000, &totals), Err("away".to_owned()));
    assert_eq!(target.requests(), 5);
    drop(second);
    target.0.lock().expect("kept").broken = false;
    let mut third = exporter(folder.path(), &target);
    third.round(OLD + 3000, &totals).expect("a round");
    assert_eq!(target.requests(), 13);
    target.calls();
    exporter(folder.path(), &target).round(OLD + 3000, &totals).expect("a round");
    assert_eq!(target.calls(), 0, "the next process knows what is there");
}

#[test]
fn the_thread_ends_with_a_last_round() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut usage = Database::open(&folder.path().join("usage.db")).expect("a database");
    let target = Target::default();
    let options = super::ExportOptions {
        name: "t".to_owned(),
        usage: folder.path().join("usage.db"),
        progress: folder.path().join("exports.db"),
        interval: Duration::from_secs(3600),
        at_start: Box::new(|| {}),
    };
    let export = super::Export::start(options, Box::new(target.clone())).expect("a thread");
    usage.add(&[piece(OLD, "a", 5)]).expect("sums");
    assert!(export.close(Duration::from_secs(20)));
    assert_eq!(target.requests(), 5);
}
