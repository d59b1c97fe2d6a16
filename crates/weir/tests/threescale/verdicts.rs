//! Verdicts that are remembered, reports that are made of requests, and a backend that is away.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};

use super::{Site, send};
use crate::harness::{Gateway, LIMIT, Refusing, wait_until};

/// A chain of `apicast` with further policies before it.
fn chain(policies: &Value) -> Value {
    let mut all = policies.as_array().cloned().unwrap_or_default();
    all.push(json!({"name": "apicast.policy.apicast"}));
    json!({ "policy_chain": all })
}

/// Usage by metric that reports and questions have told the backend of, with its applications.
fn reported(site: &Site) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for request in site.backend.complete() {
        let text = match request.method.as_str() {
            "POST" => String::from_utf8_lossy(&request.body).into_owned(),
            _ if request.target.contains("authrep") => request.target.clone(),
            _ => continue,
        };
        for argument in text.split('&') {
            let Some((name, value)) = argument.split_once("%5D=").filter(|(name, _)| name.contains("usage%5")) else {
                continue;
            };
            let metric = name.rsplit("%5B").next().unwrap_or_default();
            *sums.entry(metric.to_owned()).or_default() += value.parse::<u64>().expect("a number");
        }
    }
    sums
}

fn await_hits(site: &Site, count: u64) {
    wait_until("reports", LIMIT, || (reported(site).get("hits") == Some(&count)).then_some(()));
}

#[test]
fn a_known_verdict_needs_no_question_and_all_usage_is_reported() {
    let site = Site::new();
    let gateway = site.start(json!([site.service(json!({}))]));
    for _ in 0..20 {
        assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    }
    await_hits(&site, 20);
    let asked = site.asked();
    assert_eq!(asked.iter().filter(|target| target.contains("/transactions/authrep.xml")).count(), 1, "{asked:?}");
    let reports = site.backend.complete().into_iter().filter(|request| request.method == "POST");
    for report in reports {
        let body = String::from_utf8_lossy(&report.body).into_owned();
        assert_eq!((report.target.as_str(), report.field("host")), ("/transactions.xml", Some("backend.test")));
        assert_eq!(report.field("content-type"), Some("application/x-www-form-urlencoded"));
        let begin =
            "service_token=token&service_id=16&transactions%5B0%5D%5Buser_key%5D=good&transactions%5B0%5D%5Busage";
        assert!(body.starts_with(begin) && body.contains("%5Btimestamp%5D=20"), "{body}");
    }
}

#[test]
fn a_verdict_is_asked_for_again_beside_requests() {
    let site = Site::new();
    let gateway = site.start(json!([site.service(json!({}))]));
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    // Once the backend refuses, one request still passes, and the next ones do not.
    site.status.store(403, SeqCst);
    wait_until("the refusal", LIMIT, || (send(&gateway, "GET /?user_key=good").status == 403).then_some(()));
    assert!(site.asked().iter().any(|target| target.contains("/transactions/authorize.xml")), "{:?}", site.asked());
    site.status.store(0, SeqCst);
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
}

#[test]
fn nobody_passes_whom_the_backend_does_not_know_while_it_is_away() {
    let site = Site::new();
    let gone = Refusing::bind();
    let mut service = site.service(json!({}));
    service["proxy"]["backend"] = json!({"endpoint": format!("http://{}", gone.node())});
    let gateway = site.start(json!([service]));
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 403);
    for status in [500, 503, 499] {
        let gateway = site.start(json!([site.service(json!({}))]));
        site.status.store(status, SeqCst);
        assert_eq!(send(&gateway, "GET /?user_key=good").status, 403, "{status}");
    }
    assert_eq!(site.origin.requests().len(), 0);
}

/// Statuses of a key that was known, and of one that was not, while the backend is away.
#[allow(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]
fn outage(policies: Value) -> (u16, u16) {
    let site = Site::new();
    let mut service = site.service(chain(&policies));
    service["proxy"]["proxy_rules"][0]["delta"] = json!(1);
    let gateway = site.start(json!([service]));
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    assert_eq!(send(&gateway, "GET /?user_key=bad").status, 403);
    site.status.store(503, SeqCst);
    let before = site.asked().len();
    // The verdict is over, or was asked for again, once the backend has been asked and could not say.
    wait_until("a question", LIMIT, || {
        send(&gateway, "GET /?user_key=good");
        (site.asked().len() > before).then_some(())
    });
    settled(&gateway, "good")
}

/// Statuses of a known and an unknown key, when those of the known key do not change any more.
fn settled(gateway: &Gateway, key: &str) -> (u16, u16) {
    let request = format!("GET /?user_key={key}");
    let mut last = 0;
    wait_until("an answer that stays", LIMIT, || {
        let statuses: Vec<u16> = (0..5).map(|_| send(gateway, &request).status).collect();
        let is_same = statuses.iter().all(|status| *status == statuses[0]);
        last = statuses[0];
        is_same.then_some(())
    });
    (last, send(gateway, "GET /?user_key=unknown").status)
}

#[test]
fn the_policy_caching_says_what_outlasts_the_backend() {
    let caching = |kind: &str| json!([{"name": "caching", "configuration": {"caching_type": kind}}]);
    assert_eq!(outage(caching("resilient")), (200, 403), "the last verdict holds");
    assert_eq!(outage(caching("allow")), (200, 200), "all pass of whom no refusal is known");
    assert_eq!(outage(caching("none")), (403, 403), "nothing is remembered");
    assert_eq!(outage(caching("strict")), (403, 403), "a backend without an answer ends a verdict");
    assert_eq!(outage(json!([])), (403, 403), "as strict does");
}

#[test]
fn the_batcher_holds_verdicts_and_sums_reports_up() {
    let site = Site::new();
    let batcher = json!([{"name": "3scale_batcher", "configuration": {"auths_ttl": 600, "batch_report_seconds": 1}}]);
    let gateway = site.start(json!([site.service(chain(&batcher))]));
    for _ in 0..10 {
        assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
        assert_eq!(send(&gateway, "GET /?user_key=limited").status, 429);
        assert_eq!(send(&gateway, "GET /?user_key=bad").status, 403);
    }
    await_hits(&site, 10);
    let asked = site.asked();
    // One question for each key, and none that counts.
    assert_eq!(
        (asked.len(), asked.iter().filter(|target| target.contains("/authorize.xml")).count()),
        (3, 3),
        "{asked:?}"
    );
    assert_eq!(send(&gateway, "PUT /?user_key=good").status, 404);
}

#[test]
fn the_batcher_asks_again_when_a_verdict_is_over() {
    let site = Site::new();
    let batcher = json!([{"name": "3scale_batcher", "configuration": {"auths_ttl": 1, "batch_report_seconds": 1}}]);
    let gateway = site.start(json!([site.service(chain(&batcher))]));
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    site.status.store(403, SeqCst);
    wait_until("the end of a verdict", LIMIT, || (send(&gateway, "GET /?user_key=good").status == 403).then_some(()));
}

#[test]
fn reports_outlive_a_backend_that_is_away_and_the_process() {
    let site = Site::new();
    let spill = site.folder.path().join("spill");
    let settings = json!({ "reports": { "spill": spill.display().to_string() } });
    let batcher = json!([{"name": "3scale_batcher", "configuration": {"auths_ttl": 600, "batch_report_seconds": 1}}]);
    let services = json!([site.service(chain(&batcher))]);
    let mut gateway = site.starting(services.clone()).settings(&settings).start();
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    await_hits(&site, 1);
    site.status.store(503, SeqCst);
    for _ in 0..5 {
        assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    }
    // The batch that fails is not lost with the process.
    wait_until("a report that fails", LIMIT, || {
        (gateway.metric("weir_reports_retries_total", &[("plugin", "apicast")]) > 0.0).then_some(())
    });
    gateway.signal(rustix::process::Signal::TERM);
    gateway.wait();
    let before = site.backend.complete().len();
    site.status.store(0, SeqCst);
    let _gateway = site.starting(services).settings(&settings).start();
    wait_until("what was spilled", LIMIT, || {
        let reports = site.backend.complete().split_off(before);
        reports.iter().any(|report| String::from_utf8_lossy(&report.body).contains("%5Bhits%5D=5")).then_some(())
    });
}

#[test]
fn many_that_ask_the_same_are_one_question() {
    let site = Site::new();
    let batcher = json!([{"name": "3scale_batcher", "configuration": {"auths_ttl": 600, "batch_report_seconds": 1}}]);
    let gateway = site.starting(json!([site.service(chain(&batcher))])).workers(2).start();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
                }
            });
        }
    });
    await_hits(&site, 320);
    // A worker may ask once more just while it learns what the other one has been told.
    assert!((1..=4).contains(&site.asked().len()), "{:?}", site.asked());
}
