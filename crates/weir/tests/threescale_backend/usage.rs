//! Limits of every period, the hierarchy of metrics, reports with times, and counts that outlive the process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Site, call, element, manage, now, report, usage_report, used, within};
use crate::harness::{Gateway, LIMIT, wait_until};

const PERIODS: [&str; 7] = ["minute", "hour", "day", "week", "month", "year", "eternity"];

/// `hits` over `search` over `deep`, and `hits` over `list`; applications `a0` to `a3` on the plan `p`.
fn services(limits: &Value) -> Value {
    let applications: Vec<Value> =
        (0..4).map(|n| json!({ "id": format!("a{n}"), "plan": "p", "user_keys": [format!("k{n}")] })).collect();
    json!({ "services": [{
        "id": "1", "service_tokens": ["t"],
        "metrics": [
            { "name": "hits", "id": "h" }, { "name": "search", "parent": "hits" }, { "name": "deep", "parent": "search" },
            { "name": "list", "parent": "hits" }, { "name": "free" },
        ],
        "plans": [{ "id": "p", "limits": limits }],
        "applications": applications,
    }] })
}

fn limit(metric: &str, period: &str, value: u64) -> Value {
    json!({ "metric": metric, "period": period, "value": value })
}

/// A query about the application `aN`.
fn query(n: usize, usage: &str) -> String {
    format!("service_token=t&service_id=1&user_key=k{n}{usage}")
}

/// Use by the application `aN`.
fn count(gateway: &Gateway, n: usize, metric: &str, period: &str) -> u64 {
    used(&call(gateway, "authorize", &query(n, ""), "").text(), metric, period)
}

#[test]
fn limits_of_every_period_hold() {
    for period in PERIODS {
        let gateway = Site::new(&services(&json!([limit("hits", period, 3), limit("search", period, 9)]))).start();
        within(60, |n| {
            let next = |kind: &str, usage: &str| call(&gateway, kind, &query(n, usage), "");
            // An authorisation only looks ahead.
            for _ in 0..2 {
                let answer = next("authorize", "&usage[hits]=3");
                assert_eq!((answer.status, used(&answer.text(), "hits", period)), (200, 0), "{period}");
            }
            assert_eq!(next("authorize", "&usage[hits]=4").status, 409, "{period}");
            let first = next("authrep", "&usage[hits]=2");
            assert_eq!((first.status, used(&first.text(), "hits", period)), (200, 2), "{period}");
            let refused = next("authrep", "&usage[hits]=2");
            assert_eq!((refused.status, used(&refused.text(), "hits", period)), (409, 2), "{period}");
            assert_eq!(element(&refused.text(), "reason"), Some("usage limits are exceeded"));
            let last = next("authrep", "&usage[hits]=1");
            assert_eq!((last.status, used(&last.text(), "hits", period)), (200, 3), "{period}");
            assert_eq!(next("authrep", "&usage[hits]=1").status, 409, "{period}");
            // A call without usage, or with some of another metric, is not one too many.
            assert_eq!([next("authrep", "").status, next("authrep", "&usage[free]=1").status], [200, 200]);
            let text = last.text();
            let report = usage_report(&text, "hits", period).expect("a report");
            let bounds = element(report, "period_start").zip(element(report, "period_end"));
            assert_eq!(element(report, "max_value"), Some("3"));
            assert_eq!(bounds.is_none(), period == "eternity", "{report}");
            if let Some((start, end)) = bounds {
                let seconds = |text: &str| {
                    let text = text.replacen(' ', "T", 1).replace(" +0000", "Z");
                    text.parse::<jiff::Timestamp>().expect("a time").as_second().unsigned_abs()
                };
                let (start, end) = (seconds(start), seconds(end));
                assert!(start <= now() && now() < end, "{report}");
                let day = 86_400;
                let lengths = match period {
                    "minute" => 60..=60,
                    "hour" => 3600..=3600,
                    "day" => day..=day,
                    "week" => 7 * day..=7 * day,
                    "month" => 28 * day..=31 * day,
                    _ => 365 * day..=366 * day,
                };
                assert!(lengths.contains(&(end - start)), "{report}");
            }
        });
    }
}

#[test]
fn reports_count_beyond_limits_and_are_told_as_exceeded() {
    let gateway = Site::new(&services(&json!([limit("hits", "eternity", 3), limit("hits", "year", 100)]))).start();
    let form = "service_token=t&service_id=1&transactions[0][user_key]=k0&transactions[0][usage][hits]=2\
                &transactions[1][user_key]=k0&transactions[1][usage][deep]=3&transactions[1][log][code]=200\
                &transactions[2][app_id]=a1&transactions[2][usage][hits]=1&transactions[3][user_key]=k1";
    assert_eq!(report(&gateway, form).status, 202);
    let answer = call(&gateway, "authorize", &query(0, ""), "");
    let text = answer.text();
    assert_eq!((answer.status, used(&text, "hits", "year"), count(&gateway, 1, "hits", "year")), (409, 5, 1));
    let [eternity, year] = ["eternity", "year"].map(|period| usage_report(&text, "hits", period).expect("a report"));
    assert!(eternity.starts_with(" exceeded=\"true\">") && year.starts_with('>'), "{text}");
    // Long periods come first, metric by metric.
    assert!(text.find("\"eternity\"") < text.find("\"year\""), "{text}");
}

#[test]
fn methods_count_for_their_metrics() {
    let limits = json!([
        limit("hits", "eternity", 10),
        limit("search", "eternity", 5),
        limit("deep", "eternity", 5),
        limit("list", "eternity", 100),
    ]);
    let gateway = Site::new(&services(&limits)).start();
    let next = |n: usize, usage: &str, options: &str| call(&gateway, "authrep", &query(n, usage), options).status;
    let counts = |n: usize| ["hits", "search", "deep", "list"].map(|metric| count(&gateway, n, metric, "eternity"));
    assert_eq!((next(0, "&usage[deep]=2", ""), counts(0)), (200, [2, 2, 2, 0]));
    assert_eq!((next(0, "&usage[list]=3&usage[deep]=1&usage[hits]=1", ""), counts(0)), (200, [7, 3, 3, 3]));
    // `search` has room for 2 more, `hits` for 3.
    assert_eq!((next(0, "&usage[deep]=3", ""), next(0, "&usage[list]=4", "")), (409, 409));
    assert_eq!((next(0, "&usage[list]=3", ""), counts(0)), (200, [10, 3, 3, 6]));
    // Whoever has summed up by himself counts only what he says.
    assert_eq!((next(0, "&usage[list]=1", "flat_usage=1"), counts(0)), (200, [10, 3, 3, 7]));
    let flat = call(&gateway, "authrep", &query(1, "&usage[hits]=4&usage[list]=4"), "flat_usage=1");
    assert_eq!((flat.status, used(&flat.text(), "hits", "eternity"), counts(1)), (200, 4, [4, 0, 0, 4]));
    let form = "service_token=t&service_id=1&transactions[0][user_key]=k1&transactions[0][usage][deep]=1";
    assert_eq!((report(&gateway, form).status, counts(1)), (202, [5, 1, 1, 4]));

    let shown = call(&gateway, "authorize", &query(0, ""), "hierarchy=1").text();
    let hierarchy = element(&shown, "hierarchy").expect("the hierarchy");
    for metric in [
        "<metric name=\"hits\" children=\"search list\"/>",
        "<metric name=\"search\" children=\"deep\"/>",
        "<metric name=\"deep\" children=\"\"/>",
    ] {
        assert!(hierarchy.contains(metric), "{metric} in {hierarchy}");
    }
}

#[test]
fn counts_can_be_set() {
    let limits =
        json!([limit("hits", "eternity", 100), limit("search", "eternity", 50), limit("list", "eternity", 50)]);
    let gateway = Site::new(&services(&limits)).start();
    let next = |usage: &str| call(&gateway, "authrep", &query(0, usage), "").status;
    let counts = || ["hits", "search", "list"].map(|metric| count(&gateway, 0, metric, "eternity"));
    assert_eq!((next("&usage[search]=9"), counts()), (200, [9, 9, 0]));
    assert_eq!((next("&usage[search]=#3"), counts()), (200, [3, 3, 0]));
    assert_eq!((next("&usage[search]=#11&usage[list]=#12"), counts()), (200, [12, 11, 12]));
    assert_eq!((next("&usage[hits]=#101"), counts()), (409, [12, 11, 12]));
    let form = "service_token=t&service_id=1&transactions[0][user_key]=k0&transactions[0][usage][hits]=#101";
    assert_eq!((report(&gateway, form).status, counts()), (202, [101, 11, 12]));
    assert_eq!((next("&usage[hits]=1"), next("&usage[hits]=#2"), counts()), (409, 200, [2, 11, 12]));
    assert_eq!((next("&usage[search]=#0"), counts()), (200, [0, 0, 12]));
}

#[test]
fn fields_tell_the_tightest_limit() {
    let limits = json!([
        limit("hits", "eternity", 20),
        limit("hits", "day", 20),
        limit("search", "hour", 12),
        limit("list", "day", 0),
    ]);
    let gateway = Site::new(&services(&limits)).start();
    let fields = |kind: &str, n: usize, usage: &str| {
        let answer = call(&gateway, kind, &query(n, usage), "limit_headers=1");
        ["remaining", "reset", "max-value"].map(|name| {
            answer.field(&format!("3scale-limit-{name}")).map(|text| text.parse::<i64>().expect("a number"))
        })
    };
    // Of equal ones that with the longest period counts; calls like this one are what remains.
    assert_eq!(fields("authorize", 0, "&usage[hits]=2"), [Some(10), Some(-1), Some(20)]);
    within(3600, |_| {
        let [remaining, reset, max] = fields("authorize", 0, "&usage[search]=2");
        assert_eq!((remaining, max), (Some(6), Some(12)));
        let left = 3600 - (now() % 3600) as i64;
        assert!(reset.is_some_and(|reset| (left..=left + 2).contains(&reset)), "{reset:?} of {left}");
    });
    assert_eq!(fields("authrep", 1, "&usage[hits]=5"), [Some(3), Some(-1), Some(20)]);
    assert_eq!(fields("authrep", 1, "&usage[hits]=16"), [Some(0), Some(-1), Some(20)]);
    // Nothing limits these.
    for usage in ["&usage[free]=1", "&usage[hits]=0"] {
        assert_eq!(fields("authorize", 2, usage), [Some(-1), Some(-1), None], "{usage}");
    }
    let refused = call(&gateway, "authorize", &query(0, "&usage[nukes]=1"), "limit_headers=1");
    assert_eq!((refused.status, refused.field("3scale-limit-remaining")), (404, None));
    let without = call(&gateway, "authorize", &query(0, "&usage[hits]=1"), "");
    assert_eq!(without.field("3scale-limit-remaining"), None);
}

#[test]
fn transactions_count_in_the_period_of_their_time() {
    let limits: Vec<Value> = PERIODS.iter().map(|period| limit("hits", period, 1000)).collect();
    let gateway = Site::new(&services(&json!(limits))).start();
    let at = |seconds: u64, form: &str| {
        let time = jiff::Timestamp::from_second(seconds.cast_signed()).expect("a time");
        form.replace("SECONDS", &seconds.to_string())
            .replace("UTC", &time.strftime("%Y-%m-%d %H:%M:%S").to_string())
            .replace("ZONE", &(time + jiff::SignedDuration::from_hours(2)).strftime("%Y-%m-%d %H:%M:%S").to_string())
    };
    let transaction = |n: usize, place: usize, timestamp: &str| {
        format!(
            "&transactions[{place}][user_key]=k{n}&transactions[{place}][usage][hits]=1\
             &transactions[{place}][timestamp]={timestamp}"
        )
    };
    // Nothing below may happen around the end of a day.
    within(86_400, |n| {
        let begun = now();
        let same = |length: u64, seconds: u64| seconds / length == begun / length;
        let mut sent = Vec::new();
        let mut form = "service_token=t&service_id=1".to_owned();
        for (place, (seconds, written)) in [
            (begun, ""),
            (begun, "SECONDS"),
            (begun - 86_300, "SECONDS"),
            (begun - 7_200, "UTC"),
            (begun - 120, "UTC +0000"),
            (begun - 3_700, "ZONE +0200"),
            (begun, "garbage"),
        ]
        .into_iter()
        .enumerate()
        {
            form.push_str(&transaction(n, place, &at(seconds, written)));
            sent.push(seconds);
        }
        assert_eq!(report(&gateway, &form).status, 202);
        let expected = |length: u64| sent.iter().filter(|seconds| same(length, **seconds)).count() as u64;
        assert_eq!(count(&gateway, n, "hits", "eternity"), 7);
        assert_eq!(count(&gateway, n, "hits", "day"), expected(86_400));
        assert_eq!(count(&gateway, n, "hits", "hour"), expected(3_600));
    });
    // A report that comes too early or too late does not count, and is in the list of errors; the rest counts.
    let form = format!(
        "service_token=t&service_id=1{}{}{}&transactions[3][user_key]=nobody&transactions[3][usage][hits]=1\
         &transactions[4][user_key]=k3&transactions[4][usage][nukes]=1\
         &transactions[5][user_key]=k3&transactions[5][usage][hits]=%20\
         &transactions[6][user_key]=k3&transactions[6][app_id]=a3&transactions[6][usage][hits]=1\
         &transactions[7][usage][hits]=1",
        transaction(3, 0, &(now() - 86_500).to_string()),
        transaction(3, 1, &(now() + 3_700).to_string()),
        transaction(3, 2, &(now() + 60).to_string()),
    );
    assert_eq!(report(&gateway, &form).status, 202);
    assert_eq!(count(&gateway, 3, "hits", "eternity"), 1);
    let (status, listed) = manage(&gateway, "GET", "/services/1/errors/", &Value::Null);
    let errors = listed["errors"].as_array().expect("errors");
    let mut found: Vec<_> = errors.iter().map(|error| (error["code"].as_str(), error["message"].as_str())).collect();
    found.reverse();
    let expected = [
        ("transaction_timestamp_too_old", "reporting transactions older than 86400 seconds is not allowed"),
        ("transaction_timestamp_too_new", "reporting transactions more than 3600 seconds in the future is not allowed"),
        ("user_key_invalid", "user key \"nobody\" is invalid"),
        ("metric_invalid", "metric \"nukes\" is invalid"),
        ("usage_value_invalid", "usage value for metric \"hits\" can not be empty"),
        ("authentication_error", "either app_id or user_key is allowed, not both"),
        ("application_not_found", "application id is missing"),
    ];
    assert_eq!((status, &listed["count"]), (200, &json!(7)));
    assert_eq!(found, expected.map(|(code, text)| (Some(code), Some(text))));
    assert_eq!(
        manage(&gateway, "GET", "/services/1/errors/?page=2&per_page=4", &Value::Null).1["errors"][0]["code"],
        "user_key_invalid"
    );
    assert_eq!(manage(&gateway, "DELETE", "/services/1/errors/", &Value::Null).0, 200);
    assert_eq!(manage(&gateway, "GET", "/services/1/errors/", &Value::Null).1["count"], 0);
}

#[test]
fn no_more_than_a_limit_passes_at_once() {
    let gateway = Site::new(&services(&json!([limit("hits", "eternity", 100), limit("deep", "year", 1000)]))).start();
    let passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let status = call(&gateway, "authrep", &query(0, "&usage[deep]=1"), "").status;
                    assert!(matches!(status, 200 | 409), "{status}");
                    passed.fetch_add(usize::from(status == 200), SeqCst);
                }
            });
        }
    });
    assert_eq!((passed.into_inner(), count(&gateway, 0, "deep", "year")), (100, 100));
}

#[test]
fn counts_outlive_a_process_that_is_killed() {
    let limits = json!([limit("hits", "eternity", 100_000), limit("search", "year", 100_000)]);
    let site = Site::new(&services(&limits));
    let mut gateway = site.start();
    let (ends, answers) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    // A count that has been set to less is the one that goes on.
    let set = "service_token=t&service_id=1&transactions[0][user_key]=k1&transactions[0][usage][hits]=";
    assert_eq!([50, 5].map(|n| report(&gateway, &format!("{set}#{n}")).status), [202, 202]);
    let killed = thread::scope(|scope| {
        scope.spawn(|| {
            let form = "service_token=t&service_id=1&transactions[0][user_key]=k0&transactions[0][usage][search]=1";
            let mut client = crate::harness::RawClient::connect(super::address(&gateway));
            while !ends.load(SeqCst) {
                client.send(format!(
                    "POST /transactions.xml HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{form}",
                    form.len()
                ));
                assert_eq!(client.response().status, 202);
                answers.lock().expect("answers").push(Instant::now());
            }
        });
        let begun = Instant::now();
        wait_until("three seconds of reports", LIMIT, || (begun.elapsed() > Duration::from_secs(3)).then_some(()));
        ends.store(true, SeqCst);
        Instant::now()
    });
    gateway.signal(Signal::KILL);
    let _ = gateway.wait();
    drop(gateway);
    let answers = answers.into_inner().expect("answers");
    // A second, and as much again for a machine that has other things to do.
    let long_before = answers.iter().filter(|at| **at + Duration::from_secs(2) < killed).count() as u64;
    assert!(long_before > 20, "{long_before}");
    let mut gateway = site.start();
    let found = count(&gateway, 0, "hits", "eternity");
    assert!((long_before..=answers.len() as u64).contains(&found), "{found}: {long_before} to {}", answers.len());
    assert_eq!((count(&gateway, 0, "search", "year"), count(&gateway, 1, "hits", "eternity")), (found, 5));
    // A stop loses nothing.
    assert_eq!(call(&gateway, "authrep", &query(0, "&usage[deep]=1"), "").status, 200);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    assert_eq!(count(&site.start(), 0, "hits", "eternity"), found + 1);
}
