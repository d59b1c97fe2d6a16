//! Upstreams of Kong's family: health by requests alone, thresholds, authorities of a single service.

use serde_json::json;

use crate::harness::{Answer, Authority, Gateway, Kind, LIMIT, Nginx, Origin, Start, wait_until, weir};

fn gateway(checks: &str, targets: &[String]) -> Gateway {
    let targets = targets.join(", ");
    let document = format!(
        "_format_version: '3.0'\nservices: [{{name: s, host: pool, retries: 0, routes: [{{paths: [/]}}]}}]\n\
         upstreams: [{{name: pool, targets: [{targets}], healthchecks: {checks}}}]\n"
    );
    Start::text(&document).settings("{upstream: {set_aside: 0}}").workers(1).start()
}

fn failing() -> Origin {
    Origin::answering(|_| Answer::status(500, "no"))
}

#[test]
fn without_a_healthy_target_there_is_503() {
    let origin = failing();
    let checks = "{passive: {unhealthy: {http_failures: 2, http_statuses: [500]}}}";
    let gateway = gateway(checks, &[origin.node()]);
    let statuses: Vec<u16> = (0..4).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses, [500, 500, 503, 503]);
    assert_eq!(gateway.get("/").json()["message"], "failure to get a peer from the ring-balancer");
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn below_the_threshold_the_whole_upstream_is_closed() {
    let (bad, good) = (failing(), Origin::hello());
    let passive = "passive: {unhealthy: {http_failures: 1, http_statuses: [500]}}";
    for (threshold, status) in [("0", 200), ("49", 200), ("50", 503), ("75", 503)] {
        let checks = format!("{{threshold: {threshold}, {passive}}}");
        let gateway = gateway(&checks, &[bad.node(), good.node()]);
        wait_until("the failure to be seen", LIMIT, || (gateway.get("/").status == 500).then_some(()));
        for _ in 0..4 {
            assert_eq!(gateway.get("/").status, status, "threshold {threshold}");
        }
    }
}

#[test]
fn active_checks_count_what_they_are_told_to() {
    let (bad, good) = (failing(), Origin::hello());
    let checks = "{active: {healthy: {interval: 1, successes: 1}, unhealthy: {interval: 1, http_failures: 1, \
        http_statuses: [500]}, headers: {X-Check: ['1']}}}";
    let gateway = gateway(checks, &[bad.node(), good.node()]);
    wait_until("the check to fail", LIMIT, || (0..6).all(|_| gateway.get("/").status == 200).then_some(()));
    assert!(bad.requests().iter().any(|request| request.field("X-Check") == Some("1")));
}

#[test]
fn a_service_has_authorities_of_its_own() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["node.test"]);
    let files = [&server.cert_file, &server.key_file].map(|file| file.display().to_string());
    let nginx =
        Nginx::start_tls(&format!("ssl_certificate {}; ssl_certificate_key {}; return 200 hi;", files[0], files[1]));
    let document = |ca: &str| {
        json!({
            "_format_version": "3.0",
            "ca_certificates": [{ "id": "0b7f1c1e-5a4e-4c0f-8d0a-3a7a3b1d2c3d", "cert": ca }],
            "upstreams": [{ "name": "pool", "targets": [{ "target": nginx.node() }], "host_header": "node.test" }],
            "services": [{
                "name": "s", "host": "pool", "protocol": "https", "tls_verify": true, "retries": 0,
                "ca_certificates": ["0b7f1c1e-5a4e-4c0f-8d0a-3a7a3b1d2c3d"],
                "routes": [{ "paths": ["/"] }],
            }],
        })
    };
    for (ca, status) in [(authority.pem(), 200), (other.pem(), 502)] {
        let gateway = Start::new(document(&ca)).start();
        assert_eq!(gateway.get("/").status, status);
    }
}

#[test]
fn upstreams_may_share_a_target() {
    let origin = Origin::echo();
    let node = origin.node();
    let document = format!(
        "_format_version: '3.0'\nservices:\n- {{name: a, host: a, routes: [{{paths: [/a]}}]}}\n\
         - {{name: b, host: b, routes: [{{paths: [/b]}}]}}\n\
         upstreams: [{{name: a, targets: [{node}]}}, {{name: b, targets: [{{target: '{node}'}}]}}]\n"
    );
    let gateway = Start::text(&document).start();
    assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 200));
}

#[test]
fn unknown_fields_of_checks_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.yml");
    let text = "_format_version: '3.0'\nservices: [{name: s, host: u, ca_certificates: [none], routes: [{paths: [/]}]}]\n\
        upstreams: [{name: u, targets: ['a:1'], healthchecks: {active: {healty: {interval: 1}}, threshold: 101, \
        passive: {unhealthy: {http_failures: 1}}}}]\n";
    std::fs::write(&file, text).expect("written");
    let (code, _, told) = weir(&["check", &file.display().to_string()]);
    assert_eq!(code, 1, "{told}");
    for says in [
        "upstreams[0].healthchecks.active.healty: unknown field; did you mean healthy?",
        "upstreams[0].healthchecks.threshold: value should be between 0 and 100",
        "services[0].ca_certificates: invalid reference 'ca_certificates: none'",
    ] {
        assert!(told.contains(says), "no {says:?} in {told}");
    }
}

#[test]
fn requests_are_spread_by_a_group_of_their_path() {
    let origins = [Origin::echo(), Origin::echo(), Origin::echo()];
    let targets: Vec<String> = origins.iter().map(|origin| format!("'{}'", origin.node())).collect();
    let document = format!(
        "_format_version: '3.0'\nservices: [{{name: s, host: pool, routes: [{{paths: ['~/users/(?<user>[^/]+)']}}]}}]\n\
         upstreams: [{{name: pool, algorithm: consistent-hashing, hash_on: uri_capture, hash_on_uri_capture: user, targets: [{}]}}]\n",
        targets.join(", ")
    );
    let gateway = Start::text(&document).start();
    let counts = || origins.each_ref().map(|origin| origin.requests().len());
    let mut chosen = [0; 3];
    for user in 0..40 {
        let before = counts();
        for path in ["a", "b/c", "a"] {
            assert_eq!(gateway.get(&format!("/users/u{user}/{path}")).status, 200);
        }
        let after = counts();
        let grown: Vec<usize> = (0..3).filter(|at| after[*at] > before[*at]).collect();
        let [one] = grown[..] else { panic!("user {user} went to {grown:?}") };
        chosen[one] += 1;
    }
    assert!(chosen.iter().all(|count| *count > 0), "every target has some users: {chosen:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.yml");
    std::fs::write(&file, document.replace("hash_on_uri_capture: user, ", "")).expect("written");
    let (code, _, told) = weir(&["check", &file.display().to_string()]);
    assert!(code == 1 && told.contains("hash_on_uri_capture: expected the name of a group"), "{told}");
}
