//! The internal API: services, metrics, limits, applications and tokens, which outlive the process.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{PASSWORD, Site, call, element, manage, send, start};
use crate::harness::Gateway;

const TOKEN: &str = "the-token-of-a-gateway";
const USER_KEY: &str = "the-key-of-an-application";

/// A request that has to succeed.
#[expect(clippy::needless_pass_by_value, reason = "bodies are written where they are passed")]
fn must(gateway: &Gateway, method: &str, path: &str, body: Value) -> Value {
    let (status, answer) = manage(gateway, method, path, &body);
    assert!(matches!(status, 200 | 201), "{method} {path} {body}: {status} {answer}");
    answer
}

fn status(gateway: &Gateway, usage: &str) -> (u16, Option<String>) {
    let answer =
        call(gateway, "authrep", &format!("service_token={TOKEN}&service_id=7&user_key={USER_KEY}{usage}"), "");
    (answer.status, element(&answer.text(), "plan").map(str::to_owned))
}

/// Makes a service with an application, as 3scale's portal does.
fn fill(gateway: &Gateway) {
    let service = json!({ "service": { "id": 7, "provider_key": "the-provider-key", "backend_version": "1" } });
    let made = must(gateway, "POST", "/services/", service);
    let shown = json!({
        "id": "7", "state": "active", "provider_key": "the-provider-key", "backend_version": "1", "referrer_filters_required": false,
        "default_service": true,
    });
    assert_eq!(made, json!({ "service": shown, "status": "created" }));
    must(gateway, "POST", "/service_tokens/", json!({ "service_tokens": { TOKEN: { "service_id": 7 } } }));
    must(gateway, "POST", "/services/7/metrics/m1", json!({ "metric": { "name": "hits" } }));
    must(gateway, "POST", "/services/7/metrics/m2", json!({ "metric": { "name": "search", "parent_id": "m1" } }));
    must(gateway, "PUT", "/services/7/plans/p1/usagelimits/m1/eternity", json!({ "usagelimit": { "eternity": "2" } }));
    let application = json!({ "application": { "state": "active", "plan_id": "p1", "plan_name": "Gold" } });
    let made = must(gateway, "POST", "/services/7/applications/app", application);
    let shown = json!({
        "service_id": "7", "id": "app", "state": "active", "plan_id": "p1", "plan_name": "Gold", "redirect_url": null,
    });
    assert_eq!(made, json!({ "status": "created", "application": shown }));
    must(gateway, "PUT", &format!("/services/7/applications/app/key/{USER_KEY}"), Value::Null);
}

#[test]
fn what_is_made_counts_and_outlives_the_process() {
    let folder = tempfile::tempdir().expect("create a folder");
    let options = json!({ "internal_password": PASSWORD });
    let mut gateway = start(&options, folder.path());
    fill(&gateway);
    let gold = |status: u16| (status, Some("Gold".to_owned()));
    assert_eq!(status(&gateway, "&usage[search]=1"), gold(200));
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    // No key can be read in the data directory.
    let mut files = 0;
    for entry in std::fs::read_dir(folder.path().join("threescale")).expect("the folder of the store") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("read a file");
        let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!holds(TOKEN) && !holds(USER_KEY) && !holds("the-provider-key"));
        files += 1;
    }
    assert!(files > 0);
    let mut gateway = start(&options, folder.path());
    assert_eq!([status(&gateway, "&usage[search]=1"), status(&gateway, "&usage[hits]=1")], [gold(200), gold(409)]);
    let shown = must(&gateway, "GET", "/services/7/applications/app/utilization/", Value::Null);
    let used = json!([{ "period": "eternity", "metric_name": "hits", "max_value": 2, "current_value": 2 }]);
    assert_eq!(shown["utilization"], used);
    // A changed limit goes on with the same count, and so does a renamed metric.
    must(&gateway, "PUT", "/services/7/plans/p1/usagelimits/m1/eternity", json!({ "usagelimit": { "eternity": 3 } }));
    must(&gateway, "PUT", "/services/7/metrics/m1", json!({ "metric": { "name": "requests" } }));
    assert_eq!([status(&gateway, "&usage[search]=1"), status(&gateway, "&usage[requests]=1")], [gold(200), gold(409)]);
    // Confirmed reports outlive a process that is killed.
    must(&gateway, "DELETE", "/services/7/plans/p1/usagelimits/m1/eternity", Value::Null);
    gateway.signal(Signal::KILL);
    let _ = gateway.wait();
    let gateway = start(&options, folder.path());
    assert_eq!(status(&gateway, "&usage[requests]=9"), gold(200));
}

#[test]
fn everything_can_be_changed_and_removed() {
    let folder = tempfile::tempdir().expect("create a folder");
    let gateway = start(&json!({ "internal_password": PASSWORD }), folder.path());
    fill(&gateway);
    let none = Value::Null;
    let app = "/services/7/applications/app";
    let steps = [
        ("GET", "/services/7".to_owned(), none.clone(), 200, "found"),
        ("GET", "/services/7/metrics/m2".into(), none.clone(), 200, "\"parent_id\":\"m1\""),
        ("GET", "/services/7/plans/p1/usagelimits/m1/eternity".into(), none.clone(), 200, "\"eternity\":2"),
        ("GET", app.into(), none.clone(), 200, "Gold"),
        ("GET", format!("/services/7/applications/key/{USER_KEY}"), none.clone(), 200, "\"id\":\"app\""),
        ("HEAD", format!("/service_tokens/{TOKEN}/7/"), none.clone(), 200, ""),
        ("HEAD", format!("/service_tokens/{TOKEN}/8/"), none.clone(), 404, ""),
        ("GET", format!("/service_tokens/{TOKEN}/7/provider_key"), none.clone(), 200, "the-provider-key"),
        ("POST", app.into(), json!({ "application": { "state": "active" } }), 405, "exists already"),
        ("PUT", app.into(), json!({ "application": { "state": "suspended" } }), 200, "\"plan_name\":\"Gold\""),
        ("POST", format!("{app}/keys/"), json!({ "application_key": { "value": "secret" } }), 201, "secret"),
        ("POST", format!("{app}/keys/"), none.clone(), 201, "\"value\""),
        ("DELETE", format!("{app}/keys/secret"), none.clone(), 200, "deleted"),
        ("DELETE", format!("{app}/keys/secret"), none.clone(), 404, "application key not found"),
        ("POST", format!("{app}/referrer_filters"), json!({ "referrer_filter": "*.b.test" }), 201, "*.b.test"),
        ("GET", format!("{app}/referrer_filters"), none.clone(), 200, "[\"*.b.test\"]"),
        ("DELETE", format!("{app}/referrer_filters/Ki5iLnRlc3Q="), none.clone(), 200, "deleted"),
        ("GET", format!("{app}/referrer_filters"), none.clone(), 200, "[]"),
        ("POST", format!("{app}/referrer_filters"), json!({ "referrer_filter": " " }), 400, "can't be blank"),
        ("DELETE", format!("/services/7/applications/key/{USER_KEY}"), none.clone(), 200, "deleted"),
        ("GET", format!("/services/7/applications/key/{USER_KEY}"), none.clone(), 404, "application key not found"),
        ("DELETE", app.into(), none.clone(), 200, "deleted"),
        ("GET", app.into(), none.clone(), 404, "application not found"),
        ("GET", format!("{app}/keys/"), none.clone(), 404, "application not found"),
        ("DELETE", "/services/7/metrics/m2".into(), none.clone(), 200, "deleted"),
        ("GET", "/services/7/metrics/m2".into(), none.clone(), 404, "metric not found"),
        (
            "DELETE",
            "/service_tokens/".into(),
            json!({ "service_tokens": [{ "service_token": TOKEN, "service_id": 7 }] }),
            200,
            "\"count\":1",
        ),
        (
            "PUT",
            "/services/8".into(),
            json!({ "service": { "provider_key": "the-provider-key" } }),
            200,
            "\"default_service\":false",
        ),
        ("DELETE", "/services/7".into(), none.clone(), 400, "is the default service, cannot be removed"),
        (
            "PUT",
            "/services/8".into(),
            json!({ "service": { "default_service": true } }),
            200,
            "\"default_service\":true",
        ),
        ("GET", "/services/7".into(), none.clone(), 200, "\"default_service\":false"),
        ("PUT", "/services/change_provider_key/the-provider-key".into(), json!({ "new_key": "pk2" }), 200, "ok"),
        (
            "PUT",
            "/services/change_provider_key/the-provider-key".into(),
            json!({ "new_key": "pk3" }),
            400,
            "does not exist",
        ),
        (
            "PUT",
            "/services/change_provider_key/pk2".into(),
            json!({ "new_key": "pk2" }),
            400,
            "must be not nil and different",
        ),
        ("GET", "/services/8".into(), none.clone(), 200, "\"pk2\""),
        ("DELETE", "/services/7".into(), none.clone(), 200, "deleted"),
        ("GET", "/services/7".into(), none.clone(), 404, "not_found"),
        ("DELETE", "/services/7".into(), none, 404, "is invalid"),
    ];
    for (method, path, body, expected, part) in steps {
        let (status, answer) = manage(&gateway, method, &path, &body);
        assert!(status == expected && answer.to_string().contains(part), "{method} {path} {body}: {status} {answer}");
    }
}

#[test]
fn many_applications_are_made_at_once() {
    let folder = tempfile::tempdir().expect("create a folder");
    let gateway = start(&json!({ "internal_password": PASSWORD }), folder.path());
    fill(&gateway);
    let applications = json!({ "applications": [
        { "id": "app", "state": "active", "plan_name": "Tin", "user_key": "another", "referrer_filters": ["a.test"] },
        { "id": 5, "state": "active", "user_key": USER_KEY, "application_keys": ["one", "two"] },
        { "id": "wrong" },
        { "state": "active" },
    ] });
    let answer = must(&gateway, "PUT", "/services/7/applications/batch", applications);
    let numbers = ["total", "successful", "failed"].map(|name| answer[name].as_u64());
    assert_eq!(numbers, [Some(4), Some(2), Some(2)], "{answer}");
    assert_eq!(
        (&answer["applications"][0]["status"], &answer["applications"][1]["status"]),
        (&json!("modified"), &json!("created"))
    );
    assert_eq!(answer["applications"][1]["application"]["application_keys"], json!(["one", "two"]));
    assert!(answer["failures"].to_string().contains("has no state"), "{answer}");
    // The key has moved to the other application.
    let of = |key: &str| {
        must(&gateway, "GET", &format!("/services/7/applications/key/{key}"), Value::Null)["application"]["id"].clone()
    };
    assert_eq!([of(USER_KEY), of("another")], [json!("5"), json!("app")]);
}

#[test]
fn only_those_with_the_password_are_let_in() {
    let services = json!({ "services": [{ "id": "1", "service_tokens": ["t"] }] });
    let site = Site::new(&services);
    let gateway = site.start();
    for login in ["", "Authorization: Basic d2VpcjpvdGhlcg==", "Authorization: Bearer x", "Authorization: Basic %%"] {
        let answer = send(&gateway, &format!("GET /internal/services/1\n{login}"), "");
        assert_eq!(
            (answer.status, answer.field("www-authenticate")),
            (401, Some("Basic realm=\"internal API\"")),
            "{login}"
        );
    }
    assert_eq!(manage(&gateway, "GET", "/services/1", &Value::Null).0, 200);
    assert_eq!(manage(&gateway, "GET", "/check.json", &Value::Null), (200, json!({ "status": "ok" })));
    drop(gateway);
    let gateway = site.start_with(&json!({ "internal_password": "" }));
    let (status, refused) = manage(&gateway, "GET", "/services/1", &Value::Null);
    assert!(
        status == 403 && refused.to_string().contains("threescale_backend.internal_password"),
        "{status} {refused}"
    );
}

#[test]
fn what_is_wrong_is_told() {
    let folder = tempfile::tempdir().expect("create a folder");
    let gateway = start(&json!({ "internal_password": PASSWORD }), folder.path());
    fill(&gateway);
    let long = "x".repeat(600);
    for (method, path, body, expected, part) in [
        ("POST", "/services/", json!({}), 400, "missing parameter 'service'"),
        ("POST", "/services/", json!({ "service": { "id": "1" } }), 400, "service.provider_key"),
        ("POST", "/services/", json!({ "service": { "provider_key": "p" } }), 400, "service.id"),
        ("POST", "/services/7/metrics/m3", json!({ "metric": {} }), 400, "metric.name"),
        (
            "PUT",
            "/services/7/metrics/m1",
            json!({ "metric": { "name": "hits", "parent_id": "m2" } }),
            400,
            "above itself",
        ),
        (
            "PUT",
            "/services/7/plans/p/usagelimits/m1/second",
            json!({ "usagelimit": { "second": 1 } }),
            400,
            "unknown period",
        ),
        (
            "PUT",
            "/services/7/plans/p/usagelimits/m1/day",
            json!({ "usagelimit": { "hour": 1 } }),
            400,
            "missing parameter 'day'",
        ),
        (
            "PUT",
            "/services/7/plans/p/usagelimits/m1/day",
            json!({ "usagelimit": { "day": -1 } }),
            400,
            "expected a whole number",
        ),
        (
            "PUT",
            "/services/7/plans/p/usagelimits/m1/day",
            json!({ "usagelimit": { "day": 1_u64 << 40 } }),
            400,
            "1099511627775",
        ),
        ("GET", "/services/7/plans/p/usagelimits/m1/day", Value::Null, 404, "usagelimit not found"),
        ("PUT", "/services/7/applications/x", json!({ "application": {} }), 400, "has no state"),
        ("POST", "/service_tokens/", json!({ "service_tokens": { " ": { "service_id": 1 } } }), 422, "cannot be blank"),
        ("POST", "/service_tokens/", json!({ "service_tokens": { "a": {} } }), 422, "Service ID cannot be blank"),
        ("GET", "/services/9/errors/", Value::Null, 404, "service not found"),
        ("GET", "/services/7/errors/?per_page=0", Value::Null, 400, "per_page needs to be > 0"),
        ("GET", "/services/7/applications/none/utilization/", Value::Null, 404, "application not found"),
        ("GET", "/events/", Value::Null, 501, "not supported"),
        ("GET", "/services/7/alert_limits/", Value::Null, 501, "not supported"),
        ("DELETE", "/services/7/stats", Value::Null, 501, "no statistics"),
        ("GET", "/nothing", Value::Null, 404, "Not found"),
        ("PATCH", "/services/7", Value::Null, 404, "Not found"),
        ("GET", &format!("/services/{long}"), Value::Null, 400, "too long"),
    ] {
        let (status, answer) = manage(&gateway, method, path, &body);
        assert!(status == expected && answer.to_string().contains(part), "{method} {path} {body}: {status} {answer}");
    }
    let login = "Authorization: Basic d2Vpcjp0aGUtcGFzc3dvcmQtb2YtdGhlLWludGVybmFsLWFwaQ==";
    let broken = send(&gateway, &format!("POST /internal/services/\n{login}"), "{");
    assert!(broken.status == 400 && broken.text().contains("expected a JSON object"), "{}", broken.text());
}
