//! Written rows stay, add up, and go at the end of their retention.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use super::*;
use crate::histogram::bucket;
use crate::query::{Arguments, answer};
use crate::table::Series;

const KEEP: Keep = Keep { minutes: 30, hours: 400, days: 3660, size: u64::MAX };
/// The first minute of 2026-01-31, and its day.
const MIDNIGHT: u64 = 1_769_817_600 / 60;

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("usage.db");
    Place { _folder: folder, path }
}

fn piece(caller: &str, requests: u64) -> Slots {
    let mut cell = Cell { requests, received: 10 * requests, sent: 100 * requests, ..Cell::default() };
    cell.latencies.add(bucket(5_000), requests);
    cell.latency = 5_000 * requests;
    let series = Series { values: ["a", "r", caller, "", ""].map(Arc::from), class: 2 };
    Slots::from([(series, [(0, cell)].into())])
}

fn ask(place: &Place, keep: &Keep, text: &str, now: u64) -> Value {
    let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let arguments = Arguments(text.split('&').filter_map(pair).collect());
    let answer = answer(&place.path, keep, &arguments, now * 60).unwrap_or_else(|error| panic!("{text}: {error}"));
    serde_json::from_str(&answer.text).expect("JSON")
}

fn requests(found: &Value) -> u64 {
    found["rows"].as_array().expect("rows").iter().map(|row| row["requests"].as_u64().expect("a number")).sum()
}

#[test]
fn sums_are_the_same_before_and_after_they_are_put_together() {
    let place = place();
    let mut database = Database::open(&place.path).expect("a database");
    // Two days, a piece each ten minutes from each of two processes.
    for minute in (MIDNIGHT..MIDNIGHT + 2 * DAY).step_by(10) {
        database.add(&[(minute, piece("jack", 1))]).expect("written");
        database.add(&[(minute, piece("jill", 2))]).expect("written");
    }
    let now = MIDNIGHT + 2 * DAY - 5;
    let questions = [
        ("from=-2d", 864 - 6),
        ("from=-47h&step=hour", 47 * 18 + 18 - 18),
        ("from=-30m&step=minute", 9),
        ("from=-3d&step=day", 864),
        ("from=-3d&step=day&consumer=jill", 576),
        ("from=-3d&group_by=consumer", 864),
    ];
    let look = || questions.map(|(text, _)| ask(&place, &KEEP, text, now));
    let before = look();
    database.tidy(now * 60, 1000, &KEEP).expect("tidied");
    let left: u64 =
        database.connection.query_row("SELECT count(*) FROM pieces", [], |row| row.get(0)).expect("a count");
    assert_eq!(left, 6, "one for each minute of the last hour, made of two");
    let after = look();
    for ((text, wanted), (before, after)) in questions.iter().zip(before.iter().zip(&after)) {
        assert_eq!(before, after, "{text}");
        if !text.contains("47h") {
            assert!(requests(after).abs_diff(*wanted) <= 6, "{text}: {}", requests(after));
        }
    }
    assert_eq!(requests(&after[3]), 864);
    assert_eq!(after[3]["rows"].as_array().map(Vec::len), Some(2), "a row for each day");
    // A late record is added to its roll-up.
    database.add(&[(MIDNIGHT + 3, piece("jack", 1000))]).expect("written");
    database.tidy(now * 60, 1000, &KEEP).expect("tidied");
    assert_eq!(requests(&ask(&place, &KEEP, "from=-3d&step=day", now)), 1864);
    let first = &ask(&place, &KEEP, "from=-3d&step=day", now)["rows"][0];
    assert_eq!(first["bytes_sent"], 143_200);
    assert!((first["p99_ms"].as_f64().expect("a number") - 5.0).abs() < 0.17, "{first}");
    assert!((first["latency_ms"].as_f64().expect("a number") - 5.0).abs() < 0.02, "{first}");
}

#[test]
fn old_sums_go_and_coarser_ones_stay() {
    let place = place();
    let mut database = Database::open(&place.path).expect("a database");
    for day in 0..500 {
        database.add(&[(MIDNIGHT + day * DAY, piece("jack", 1))]).expect("written");
    }
    let now = MIDNIGHT + 500 * DAY;
    database.tidy(now * 60, 1000, &KEEP).expect("tidied");
    let count = |table: &str| {
        let sql = format!("SELECT count(*) FROM {table}");
        database.connection.query_row(&sql, [], |row| row.get::<_, u64>(0)).expect("a count")
    };
    assert_eq!((count("minutes"), count("hours"), count("days")), (30, 400, 500));
    assert_eq!(requests(&ask(&place, &KEEP, "from=-600d", now)), 500);
    let size = database.bytes().expect("a size") - 16_384;
    let small = Keep { size, ..KEEP };
    database.tidy(now * 60, 1000, &small).expect("tidied");
    let found = database.bytes().expect("a size");
    assert!(found <= size, "{found} bytes for {size}");
    let sizes = ["minutes", "hours", "days"].map(|table| {
        let sql = format!("SELECT count(*) FROM {table}");
        database.connection.query_row(&sql, [], |row| row.get::<_, u64>(0)).expect("a count")
    });
    assert!(sizes[0] == 0 && sizes[1] < 400 && sizes[2] == 500, "minutes go first and days stay: {sizes:?}");
}

#[test]
fn other_files_are_refused() {
    let place = place();
    std::fs::write(&place.path, b"no database at all, but a text that is long enough to have a head of one")
        .expect("a file");
    let error = Database::open(&place.path).expect_err("a text").to_string();
    assert!(error.contains("usage.db"), "{error}");
    std::fs::remove_file(&place.path).expect("removed");
    Connection::open(&place.path).expect("open").execute_batch("CREATE TABLE other (a)").expect("made");
    assert_eq!(
        Database::open(&place.path).map(drop),
        Err(UsageError::Unfit(format!("{}: it is no database of usage", place.path.display())))
    );
    std::fs::remove_file(&place.path).expect("removed");
    let database = Database::open(&place.path).expect("a database");
    database.connection.pragma_update(None, "user_version", 2).expect("changed");
    drop(database);
    assert!(Database::open(&place.path).expect_err("a later version").to_string().contains("version 2"));
}

/// An hour of 1,000 keys and 100 APIs. A key of rank r calls in a share of 1 / (1 + r / 100) of the minutes of a busy
/// hour, up to three of its APIs, some 10 times each: 400 pairs of key and API are active in each minute then.
fn busy_hour(random: &mut fastrand::Rng, activity: f64) -> Slots {
    let mut slots = Slots::new();
    for rank in 0..1000u32 {
        for minute in 0..60 {
            if random.f64() > activity / (1.0 + f64::from(rank) / 100.0) {
                continue;
            }
            for api in 0..=random.u32(..3) {
                let api = (rank * 7 + api * 31) % 100;
                let names = [format!("api-{api:03}"), format!("route-{api:03}"), format!("customer-{rank:04}")];
                let [api_name, route, consumer] = names.map(Arc::from);
                let values = [api_name, route, consumer, format!("key-{rank:04}").into(), "gold".into()];
                let class = if random.u32(..50) == 0 { 5 } else { 2 };
                let cell = slots.entry(Series { values, class }).or_default().entry(minute).or_default();
                let calls = 1 + (1.0 / (random.f64() + 0.03)) as u64;
                for _ in 0..calls {
                    let base = 2_000.0 + 400.0 * f64::from(api);
                    let latency = (base * (1.0 + 0.2 / (random.f64() + 0.05))) as u32;
                    cell.merge(&Cell {
                        requests: 1,
                        received: random.u64(150..400),
                        sent: random.u64(300..3000),
                        latency: latency.into(),
                        upstream: u64::from(latency) - random.u64(80..300),
                        ..Cell::default()
                    });
                    cell.latencies.add(bucket(latency), 1);
                }
            }
        }
    }
    slots
}

#[test]
fn a_year_of_minutes_takes_less_than_2_gb_and_is_read_quickly() {
    let place = place();
    let mut database = Database::open(&place.path).expect("a database");
    let mut random = fastrand::Rng::with_seed(1);
    let hours: Vec<Slots> = [0.2, 0.5, 1.0].map(|activity| busy_hour(&mut random, activity)).into();
    let blocks: Vec<Vec<u8>> = hours.iter().map(encode).collect();
    let cells: usize = hours.iter().map(|hour| hour.values().map(std::collections::BTreeMap::len).sum::<usize>()).sum();
    let bytes: usize = blocks.iter().map(Vec::len).sum();
    let sums: Vec<Slots> = hours
        .iter()
        .map(|hour| {
            hour.iter()
                .map(|(series, cells)| {
                    let mut whole = Cell::default();
                    cells.values().for_each(|cell| whole.merge(cell));
                    (series.clone(), [(0, whole)].into())
                })
                .collect()
        })
        .collect();
    let of_hours: Vec<[Vec<u8>; 2]> = sums.iter().map(|sum| [encode(&without_callers(sum)), encode(sum)]).collect();
    let mut day = Slots::new();
    for sum in sums.iter().cycle().take(24) {
        let bytes = encode(sum);
        Block::open(&bytes).expect("a block").add_to(&mut day, |_| 0).expect("cells");
    }
    let of_day = [encode(&without_callers(&day)), encode(&day)];
    let transaction = database.connection.transaction().expect("a transaction");
    for hour in 0..24 * 7u64 {
        let at = MIDNIGHT / HOUR + 359 * 24 + hour;
        let block = &blocks[hour as usize % 3];
        transaction.execute("INSERT INTO minutes VALUES (?, ?)", params![at, block]).expect("written");
    }
    for hour in 0..24 * 31u64 {
        let at = MIDNIGHT / HOUR + 335 * 24 + hour;
        transaction
            .execute(
                "INSERT INTO hours VALUES (?, ?, ?)",
                params![at, of_hours[hour as usize % 3][0], of_hours[hour as usize % 3][1]],
            )
            .expect("written");
    }
    for at in 0..366u64 {
        transaction
            .execute("INSERT INTO days VALUES (?, ?, ?)", params![MIDNIGHT / DAY + at, of_day[0], of_day[1]])
            .expect("written");
    }
    transaction.commit().expect("written");
    let year = 366 * 8 * (bytes + of_hours.iter().flatten().map(Vec::len).sum::<usize>())
        + 366 * of_day.iter().map(Vec::len).sum::<usize>();
    println!(
        "{cells} sums in three hours, {:.2} bytes each; a year takes {} MB",
        bytes as f64 / cells as f64,
        year / 1_000_000
    );
    // The last page of a row may be all but empty.
    let pages = 366 * (24 * 2 + 1) * 4096;
    assert!(year + pages < 2_000_000_000, "a year takes {year} bytes and room in {pages}");
    let now = MIDNIGHT + 366 * DAY;
    for text in [
        "from=-1h&step=minute",
        "from=-24h&step=minute",
        "from=-24h&step=minute&group_by=api&limit=10",
        "from=-24h&step=minute&group_by=api&limit=10&percentiles=",
        "from=-24h&step=minute&consumer=customer-0007",
        "from=-24h&step=hour&group_by=api",
        "from=-24h&group_by=consumer",
        "from=-7d&step=hour&group_by=status",
        "from=-31d&step=hour",
        "from=-31d&step=day&consumer=customer-0007",
        "from=-366d&step=day",
        "from=-366d&group_by=api",
    ] {
        let began = Instant::now();
        let found = ask(&place, &Keep { minutes: 366, ..KEEP }, text, now);
        println!("{:>6} ms {text}", began.elapsed().as_millis());
        assert!(requests(&found) > 0, "{text}");
    }
}
