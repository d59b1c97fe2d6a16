//! A configuration that is small as a text and large when compiled is refused before it is built, from every source.

use std::fs;
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::etcd::{self, await_answer};
use crate::harness::{EtcdCluster, Gateway, LIMIT, Start, wait_until, weir};

const UPSTREAM: &str = "127.0.0.1:1";

fn names(count: usize, name: impl Fn(usize) -> String) -> Vec<String> {
    (0..count).map(name).collect()
}

fn route(fields: &Value) -> Value {
    let mut route = json!({"uri": "/x", "upstream": {"type": "roundrobin", "nodes": {UPSTREAM: 1}}});
    route.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    route
}

/// Resources by section and id, and what is said of them.
type Case = (&'static str, Vec<(&'static str, String, Value)>, &'static str);

fn cases() -> Vec<Case> {
    let hosts = names(4_000, |n| format!("h{n}.test"));
    let uris = names(4_000, |n| format!("/u{n}"));
    let regexes = names(900, |n| format!("{n}\\w{{1000}}"));
    let pairs: Vec<String> = regexes.iter().flat_map(|regex| [regex.clone(), "/".to_owned()]).collect();
    let rules: Vec<Value> = regexes.iter().map(|regex| json!(["http_x", "~~", regex])).collect();
    let properties: Map<String, Value> =
        regexes.iter().map(|regex| (regex.clone(), json!({"type": "string", "pattern": regex}))).collect();
    let nodes: Vec<Value> =
        (0..300).map(|n| json!({"host": "10.0.0.1", "port": n + 1, "weight": 1_000_000, "priority": n / 2})).collect();
    let shares: Vec<Value> = (0..20_000).map(|n| json!({"weight": if n % 2 == 0 { 8191 } else { 1 }})).collect();
    let splits: Vec<Value> = shares.chunks(2).map(|pair| json!({"weighted_upstreams": pair})).collect();
    let service = json!({"hosts": hosts[..2_000], "upstream": {"nodes": {UPSTREAM: 1}}});
    let mut of_service = vec![("services", "s".to_owned(), service)];
    let uris_of_service = names(30, |n| format!("/u{n}"));
    of_service.extend((0..40).map(|n| ("routes", n.to_string(), json!({"uris": uris_of_service, "service_id": "s"}))));
    let one = |value| vec![("routes", "big".to_owned(), value)];
    vec![
        (
            "hosts times paths",
            one(json!({"hosts": hosts, "uris": uris, "upstream": {"nodes": {UPSTREAM: 1}}})),
            "4000 hosts × 4000 uris are 16000000 entries of the matcher, more than limits.route_entries allows: 65536",
        ),
        ("hosts of a service times routes", of_service, "2000 hosts of its service × 30 uris are 60000 entries"),
        ("expressions of conditions", one(route(&json!({"vars": rules}))), "limits.compiled_size"),
        (
            "expressions of a filter",
            one(route(&json!({"plugins": {"echo": {"body": "x", "_meta": {"filter": rules}}}}))),
            "limits.compiled_size",
        ),
        (
            "expressions of a plugin",
            one(route(&json!({"plugins": {"uri-blocker": {"block_rules": regexes}}}))),
            "limits.compiled_size",
        ),
        (
            "expressions with groups",
            one(route(&json!({"plugins": {"proxy-rewrite": {"regex_uri": pairs}}}))),
            "limits.compiled_size",
        ),
        (
            "patterns of a JSON schema",
            one(route(&json!({"plugins": {"request-validation": {"body_schema": {
                "type": "object", "properties": properties, "patternProperties": properties}}}}))),
            "limits.compiled_size",
        ),
        (
            "weights of hash rings",
            one(json!({"uri": "/x", "upstream": {"type": "chash", "key": "remote_addr", "nodes": nodes}})),
            "300 nodes with their weights: it takes some",
        ),
        (
            "weights of turns",
            one(route(&json!({"plugins": {"traffic-split": {"rules": splits}}}))),
            "weighted_upstreams: it takes some",
        ),
    ]
}

/// Most memory that the process has had, in MiB.
fn peak(gateway: &Gateway) -> u64 {
    let pid = gateway.processes()[0];
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("a peak");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") / 1024
}

#[test]
fn the_admin_api_refuses_what_is_too_large_compiled() {
    let limits = json!({"limits": {"compiled_size": "16MiB"}});
    let gateway = Start::stored().settings(limits).start();
    gateway.must("PUT", "routes/small", &route(&json!({"uri": "/small"})).to_string());
    for (name, resources, says) in cases() {
        let began = Instant::now();
        let answers = resources
            .iter()
            .map(|(section, id, value)| gateway.ask("PUT", &format!("{section}/{id}"), &value.to_string()));
        let refused = answers.into_iter().find(|(status, _)| *status >= 300);
        let (status, answer) = refused.unwrap_or_else(|| panic!("{name}: nothing was refused"));
        assert_eq!(status, 400, "{name}: {answer}");
        assert!(answer.to_string().contains(says), "{name}: {answer}");
        assert!(began.elapsed() < LIMIT * 2, "{name}: {:?}", began.elapsed());
        for (section, id, _) in resources.iter().rev() {
            gateway.ask("DELETE", &format!("{section}/{id}"), "");
        }
    }
    assert!(peak(&gateway) < 700, "{} MiB", peak(&gateway));
    assert_eq!(gateway.get("/small").status, 502, "the small route is live");
}

#[test]
fn a_file_is_refused_for_what_is_too_large_compiled() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = folder.path().join("weir.yaml");
    fs::write(&settings, "limits: {compiled_size: 16MiB}\n").expect("written");
    for (name, resources, says) in cases() {
        let mut sections: Map<String, Value> = Map::new();
        for (section, id, mut value) in resources {
            value["id"] = json!(id);
            let items = sections.entry(section).or_insert_with(|| json!([]));
            items.as_array_mut().expect("a list").push(value);
        }
        let file = folder.path().join("rules.json");
        fs::write(&file, Value::Object(sections).to_string()).expect("written");
        let paths = [&file, &settings].map(|path| path.display().to_string());
        let (code, out, err) = weir(&["check", &paths[0], "--settings", &paths[1]]);
        assert_eq!(code, 1, "{name}: {out}{err}");
        assert!(format!("{out}{err}").contains(says), "{name}: {out}{err}");
    }
}

/// etcd holds whatever was written to it: what is too large compiled is not built, the log says why, and the rest serves.
#[test]
fn etcd_may_hold_what_is_too_large_compiled() {
    /// Bytes that fit into one argument of etcdctl.
    const LONGEST: usize = 120_000;
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/small", route(&json!({"uri": "/small"})));
    let settings = etcd::settings("data_plane", &cluster.urls(), "");
    let settings = format!("{settings}\nlimits: {{compiled_size: 16MiB}}");
    let gateway = Start::stored().settings(settings).admin_by_settings().start();
    let mut tried = 0;
    for (name, resources, says) in cases() {
        if resources.iter().any(|(_, _, value)| value.to_string().len() > LONGEST) {
            continue;
        }
        tried += 1;
        let before = gateway.stderr().matches(says).count();
        for (section, id, value) in &resources {
            cluster.put(&format!("{section}/{id}"), value);
        }
        wait_until(&format!("{name} to be refused"), LIMIT * 2, || {
            (gateway.stderr().matches(says).count() > before).then_some(())
        });
        assert_eq!(gateway.get("/small").status, 502, "{name}: the rest serves");
        assert_ne!(gateway.get("/x").status, 502, "{name}: what is too large does not");
        for (section, id, _) in resources.iter().rev() {
            cluster.delete(&format!("{section}/{id}"));
        }
        await_answer(&gateway, "/x", None);
    }
    assert!(tried > 4, "{tried} cases");
    assert!(peak(&gateway) < 700, "{} MiB", peak(&gateway));
}

/// Existing resources count with each change, and deleted ones free their share.
#[test]
fn the_sum_is_that_of_all_changes() {
    let limits = json!({"limits": {"compiled_size": "8MiB"}});
    let gateway = Start::stored().settings(limits).start();
    let put = |id: usize| {
        let value = route(&json!({"uri": format!("/{id}"), "vars": [["http_x", "~~", format!("{id}\\w{{1000}}")]]}));
        gateway.ask("PUT", &format!("routes/{id}"), &value.to_string())
    };
    let taken = (0..100).take_while(|id| put(*id).0 < 300).count();
    assert!((4..40).contains(&taken), "{taken} routes");
    let (status, answer) = put(taken);
    assert_eq!(status, 400);
    assert!(answer.to_string().contains("limits.compiled_size"), "{answer}");
    // In the place of what is there is room for as much.
    for _ in 0..5 {
        assert_eq!(put(0).0, 200);
    }
    assert_eq!(put(taken).0, 400);
    gateway.must("DELETE", "routes/1", "");
    assert_eq!(put(taken).0, 201);
    assert_eq!(put(1).0, 400);
}
