//! Records of requests for Tyk's Pump: the list of Redis that it reads, and the collection of MongoDB.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::exports::Ends;
use crate::harness::{Gateway, LIMIT, Redis, Start, repository, wait_until};

use super::{Site, key, keyed, keyless, right, send};

/// The list that the Pump reads.
const LIST: &str = "analytics-tyk-system-analytics";

/// Three APIs, one of which is not recorded.
fn site() -> Site {
    let site = Site::new();
    let mut at = keyed("at");
    at["tag_headers"] = json!(["X-Team"]);
    at["expire_analytics_after"] = json!(3600);
    site.api("at", at);
    let mut open = keyless("open", "/open/", "/base");
    open["proxy"]["strip_listen_path"] = false.into();
    let paths = json!({
        "track_endpoints": [{"path": "/orders/{id}", "method": "GET"}],
        "do_not_track_endpoints": [{"path": "/health", "method": "GET"}],
    });
    let second = json!({"name": "v2", "use_extended_paths": true, "extended_paths": paths});
    open["version_data"] = json!({"not_versioned": false, "versions": {"v1": {"name": "v1"}, "v2": second}});
    site.api("open", open);
    let mut quiet = keyless("quiet", "/quiet/", "/");
    quiet["do_not_track"] = true.into();
    site.api("quiet", quiet);
    site
}

/// Requests of which five are recorded.
fn requests(gateway: &Gateway) {
    let token =
        key(gateway, &right("at", json!({"alias": "phone", "tags": ["red"], "meta_data": {"tyk_developer_id": "d7"}})));
    assert_eq!(send(gateway, "GET /quiet/x").status, 200);
    let own = format!("GET /at/a%20b?q=1\nAuthorization: {token}\nUser-Agent: tester\nX-Team: blue");
    assert_eq!(send(gateway, &own).status, 200);
    assert_eq!(send(gateway, "POST /open/y\nx-api-version: v2\n\nbody").status, 200);
    assert_eq!(send(gateway, "GET /at/z").status, 401);
    assert_eq!(send(gateway, "GET /nowhere").status, 404);
    // Lists of a version: one path is recorded under its pattern, one is not recorded. They are not the other version's.
    assert_eq!(send(gateway, "GET /open/orders/77\nx-api-version: v2").status, 200);
    assert_eq!(send(gateway, "GET /open/health\nx-api-version: v2").status, 200);
    assert_eq!(send(gateway, "GET /open/health\nx-api-version: v1").status, 200);
}

/// The records of a list, as hexadecimal digits.
fn taken(redis: &Redis) -> Vec<String> {
    let script = "local all = redis.call('LRANGE', KEYS[1], 0, -1) for i, one in ipairs(all) do \
                  all[i] = (one:gsub('.', function(c) return string.format('%02x', c:byte()) end)) end return all";
    let told = redis.cli(&["EVAL", script, "1", LIST]);
    told.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
}

fn decoded(hexadecimal: &str) -> Value {
    let bytes: Vec<u8> = (0..hexadecimal.len() / 2)
        .map(|at| u8::from_str_radix(&hexadecimal[2 * at..2 * at + 2], 16).expect("digits"))
        .collect();
    rmp_serde::from_slice(&bytes).expect("MessagePack")
}

/// Checks the three records by the names of their fields, of which `name` makes those of a form.
fn check(records: &[Value], origin: &str, name: impl Fn(&str) -> String) {
    let field =
        |record: &Value, path: &str| path.split('.').fold(record.clone(), |value, part| value[name(part)].clone());
    let found = |status: u64, method: &str| {
        let fits = |record: &&Value| field(record, "ResponseCode") == status && field(record, "Method") == method;
        records.iter().find(fits).unwrap_or_else(|| panic!("no {method} with {status}: {records:?}")).clone()
    };
    let at = |path: &str| {
        let fits = |record: &&Value| field(record, "OriginalPath") == path;
        records.iter().find(fits).unwrap_or_else(|| panic!("no {path}: {records:?}")).clone()
    };
    let (own, open, refused) = (at("/at/a b"), found(200, "POST"), found(401, "GET"));
    let (tracked, health) = (at("/open/orders/77"), at("/open/health"));
    let hash = field(&own, "APIKey").as_str().expect("a text").to_owned();
    assert!(hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "hashed: {own}");
    let tags = json!(["dev-d7", "red", "x-team-blue", format!("key-{hash}"), "org-o1", "api-at"]);
    for (record, path, expected) in [
        (&own, "Path", json!("/a b")),
        (&own, "OriginalPath", json!("/at/a b")),
        (&own, "ListenPath", json!("/at/")),
        (&own, "Host", json!(origin)),
        (&own, "UserAgent", json!("tester")),
        (&own, "APIID", json!("at")),
        (&own, "APIName", json!("at")),
        (&own, "OrgID", json!("o1")),
        (&own, "APIVersion", json!("Non Versioned")),
        (&own, "Alias", json!("phone")),
        (&own, "IPAddress", json!("127.0.0.1")),
        (&own, "Tags", tags),
        (&own, "TrackPath", json!(false)),
        (&own, "Geo.Country.ISOCode", json!("")),
        (&open, "APIVersion", json!("v2")),
        (&open, "ContentLength", json!(4)),
        (&open, "Path", json!("/open/y")),
        (&open, "APIKey", json!("")),
        (&refused, "Path", json!("/z")),
        (&tracked, "Path", json!("/orders/{id}")),
        (&tracked, "RawPath", json!("/open/orders/77")),
        (&tracked, "TrackPath", json!(true)),
        (&health, "APIVersion", json!("v1")),
        (&refused, "Latency.Upstream", json!(0)),
    ] {
        assert_eq!(field(record, path), expected, "{path}: {record}");
    }
    let number = |path: &str| field(&own, path).as_i64().unwrap_or_else(|| panic!("{path}: {own}"));
    assert!(number("RequestTime") < 10_000 && number("Network.BytesIn") > 50 && number("Year") > 2020, "{own}");
    assert_eq!(number("Latency.Total"), number("Latency.Upstream") + number("Latency.Gateway"), "{own}");
}

#[test]
fn requests_are_recorded_for_the_pump_in_redis() {
    let redis = Redis::with(&["--requirepass", "pass,word"], &["-a", "pass,word", "--no-auth-warning"]);
    let site = site();
    let conf = site.conf(json!({
        "enable_analytics": true, "analytics_config": {"ignored_ips": ["10.0.0.1"]},
        "storage": {"type": "redis", "host": "127.0.0.1", "port": redis.port, "password": "pass,word", "database": 0},
    }));
    let gateway = Start::at(&conf).start();
    requests(&gateway);
    let records = wait_until("five records", LIMIT, || Some(taken(&redis)).filter(|records| records.len() >= 5));
    let values: Vec<Value> = records.iter().map(|record| decoded(record)).collect();
    assert_eq!(values.len(), 5, "{values:?}");
    check(&values, &site.origin.node(), str::to_owned);
    wait_until("a time to live of a minute", LIMIT, || {
        let expires = redis.cli(&["TTL", LIST]).parse::<i64>().expect("a number");
        (1..=60).contains(&expires).then_some(())
    });
    let times = [&values[0]["TimeStamp"], &values[0]["ExpireAt"]].map(|time| time[0].as_i64().expect("seconds"));
    assert!(times[0] > 1_700_000_000 && times[1] > times[0], "{times:?}");
    of_the_pump(&records);
    gateway.await_metric("weir_reports_total", &[("plugin", "analytics"), ("outcome", "sent")], 5.0);
}

#[test]
fn requests_and_answers_are_recorded_whole_where_that_is_asked_for() {
    let redis = Redis::start();
    let site = Site::new();
    site.api("short", keyed("short"));
    let mut whole = keyless("whole", "/whole/", "/");
    whole["enable_detailed_recording"] = true.into();
    site.api("whole", whole);
    let storage = json!({"type": "redis", "host": "127.0.0.1", "port": redis.port});
    let gateway = Start::at(&site.conf(json!({"enable_analytics": true, "storage": storage}))).start();
    let short = key(&gateway, &right("short", json!({})));
    let detailed = key(&gateway, &right("short", json!({"enable_detailed_recording": true})));
    let long = "l".repeat(300_000);
    for request in [
        "POST /whole/a?b=1\nX-Own: o\n\nbody".to_owned(),
        format!("POST /whole/long\n\n{long}"),
        format!("GET /short/plain\nAuthorization: {short}"),
        format!("PUT /short/of-session\nAuthorization: {detailed}\n\nof the session"),
    ] {
        assert_eq!(send(&gateway, &request).status, 200);
    }
    let records = wait_until("four records", LIMIT, || Some(taken(&redis)).filter(|records| records.len() >= 4));
    let values: Vec<Value> = records.iter().map(|record| decoded(record)).collect();
    let told = |path: &str| {
        let record = values.iter().find(|record| record["Path"] == path).unwrap_or_else(|| panic!("{path}"));
        ["RawRequest", "RawResponse"].map(|field| {
            let decoded = STANDARD.decode(record[field].as_str().expect("a text")).expect("base64");
            String::from_utf8(decoded).expect("text")
        })
    };
    let [request, response] = told("/a");
    assert!(request.starts_with("POST /whole/a?b=1 HTTP/1.1\r\nHost: o\r\n"), "{request}");
    assert!(request.contains("X-Own: o\r\n") && request.ends_with("Content-Length: 4\r\n\r\nbody"), "{request}");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nbody"), "{response}");
    assert_eq!(told("/plain"), [String::new(), String::new()]);
    assert!(told("/of-session").iter().all(|text| text.ends_with("\r\n\r\nof the session")));
    // So much of a long body as is recorded.
    let [request, response] = told("/long");
    assert!(request.len() < 1 << 16 && response.len() < (1 << 16) + 1024, "{} {}", request.len(), response.len());
    assert!(response.ends_with(&"l".repeat(1 << 16)));
}

/// The same records, read by the library that the Pump reads them with, into the fields that its documentation lists. The
/// program is built by `make test-peers`.
fn of_the_pump(records: &[String]) {
    let reader = repository().join("target/test-tools/pump-reader");
    if !reader.exists() {
        println!("not read by the Pump's library: make test-peers builds {}", reader.display());
        return;
    }
    let mut reader = Command::new(reader).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start it");
    let mut input = reader.stdin.take().expect("its input");
    records.iter().for_each(|record| writeln!(input, "{record}").expect("write a record"));
    drop(input);
    let output = reader.wait_with_output().expect("its output");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let read: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(read.len(), records.len(), "{text}");
    assert!(
        read.iter().any(|record| record["Tags"].as_array().is_some_and(|tags| tags.contains(&json!("x-team-blue"))))
    );
    assert!(
        read.iter().all(|record| record["TimeStamp"].as_str().is_some_and(|time| time.starts_with("20"))),
        "{text}"
    );
}

#[test]
fn records_wait_for_a_redis_that_is_away() {
    let mut redis = Redis::start();
    let site = site();
    // Keys are not in this Redis: while theirs is away they are refused.
    let conf = site.conf(json!({
        "enable_analytics": true,
        "enable_separate_analytics_store": true,
        "analytics_storage": {"host": "127.0.0.1", "port": redis.port},
    }));
    let gateway = Start::at(&conf).start();
    redis.kill();
    requests(&gateway);
    wait_until("an attempt that fails", LIMIT, || {
        (gateway.metric("weir_reports_retries_total", &[("plugin", "analytics")]) > 0.0).then_some(())
    });
    redis.restart();
    wait_until("the records", LIMIT, || (taken(&redis).len() == 5).then_some(()));
}

#[test]
fn requests_are_recorded_in_the_collection_of_tyk_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Command::new(repository().join("target/test-tools/bin/python"));
    server.arg(repository().join("crates/weir/tests/harness/mongod.py")).arg(folder.path()).arg("se/cret");
    let mut server = server.stdout(Stdio::piped()).spawn().expect("run tools/install-test-deps");
    let mut port = String::new();
    BufReader::new(server.stdout.take().expect("its output")).read_line(&mut port).expect("a port");
    let _server = Ends(server);
    let site = site();
    let url = format!("mongodb://jack:se%2Fcret@127.0.0.1:{}/", port.trim());
    let conf = site.conf(json!({
        "enable_analytics": true,
        "analytics_config": {"type": "mongo", "mongo_url": url, "mongo_db_name": "tyk_analytics"},
    }));
    let gateway = Start::at(&conf).start();
    requests(&gateway);
    let kept = wait_until("five documents", LIMIT, || {
        let kept: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("documents.json")).ok()?).ok()?;
        (kept["documents"].as_array()?.len() >= 5).then_some(kept)
    });
    let documents = kept["documents"].as_array().expect("documents");
    check(documents, &site.origin.node(), str::to_ascii_lowercase);
    assert!(documents.iter().all(|one| one["expireAt"].as_f64() > one["timestamp"].as_f64()), "{documents:?}");
    let commands = kept["commands"].as_array().expect("commands");
    assert_eq!(commands.last(), Some(&json!("tyk_analytics.tyk_analytics insert")), "{commands:?}");
}

#[test]
fn destinations_that_records_cannot_have_are_refused() {
    let site = site();
    for (conf, reason) in [
        (json!({"analytics_config": {"type": "rpc"}}), "analytics_config.type: expected mongo, csv, or none"),
        (json!({"analytics_config": {"type": "csv"}}), "analytics_config.csv_dir: expected the path of a folder"),
        (json!({"analytics_config": {"serializer_type": "protobuf"}}), "serializer_type: protobuf is not supported"),
        (json!({"storage": {"enable_cluster": true}}), "storage.enable_cluster: records are written to one server"),
        (
            json!({"enable_separate_analytics_store": true, "analytics_storage": {"addrs": ["a:1", "b:2"]}}),
            "analytics_storage.addrs: expected one address",
        ),
        (json!({"analytics_config": {"type": "mongo"}}), "analytics_config.mongo_url: expected mongodb://"),
    ] {
        let mut more = json!({"enable_analytics": true});
        conf.as_object().expect("fields").iter().for_each(|(name, value)| more[name] = value.clone());
        let file = site.conf(more);
        let (status, out, err) = crate::harness::weir(&["check", &file.display().to_string()]);
        assert!(status != 0 && format!("{out}{err}").contains(reason), "{conf}: {status} {out}{err}");
    }
}

#[test]
fn requests_are_recorded_in_files_of_csv() {
    let site = site();
    let folder = site.folder.path().join("records");
    fs::create_dir(&folder).expect("create a folder");
    let conf = json!({"enable_analytics": true, "analytics_config": {"type": "csv", "csv_dir": folder}});
    let gateway = Start::at(&site.conf(conf)).start();
    requests(&gateway);
    // The hour may change meanwhile.
    let lines = wait_until("five records", LIMIT, || {
        let files = fs::read_dir(&folder).expect("read the folder").map(|entry| entry.expect("an entry").path());
        let mut lines: Vec<(String, String)> = Vec::new();
        for file in files {
            assert!(file.extension().is_some_and(|end| end == "csv"), "{}", file.display());
            let text = fs::read_to_string(&file).expect("read a file");
            let header = text.lines().next()?.to_owned();
            lines.extend(text.lines().skip(1).map(|line| (header.clone(), line.to_owned())));
        }
        (lines.len() >= 5).then_some(lines)
    });
    assert_eq!(lines.len(), 5, "{lines:?}");
    let field = |(header, line): &(String, String), name: &str| {
        let at = header.split(',').position(|column| column == name).unwrap_or_else(|| panic!("{name}: {header}"));
        assert_eq!(line.split(',').count(), header.split(',').count(), "{line}");
        line.split(',').nth(at).expect("a column").to_owned()
    };
    let of = |path: &str| {
        let found = lines.iter().find(|line| field(line, "OriginalPath") == path);
        found.unwrap_or_else(|| panic!("no {path}: {lines:?}"))
    };
    let own = of("/at/a b");
    for (name, expected) in [
        ("Method", "GET"),
        ("Path", "/a b"),
        ("ResponseCode", "200"),
        ("APIID", "at"),
        ("Alias", "phone"),
        ("GeoData.City.GeoNameID", "0"),
        ("GeoData.City.Names", ""),
        ("TrackPath", "false"),
        ("ApiSchema", ""),
        ("ListenPath", "/at/"),
    ] {
        assert_eq!(field(own, name), expected, "{name}: {own:?}");
    }
    assert!(field(own, "Tags").starts_with("dev-d7;red;x-team-blue;key-"), "{own:?}");
    assert!(field(own, "TimeStamp").ends_with(" +0000 UTC") && field(own, "Month").len() >= 3, "{own:?}");
    assert_eq!(field(of("/open/orders/77"), "Path"), "/orders/{id}");
}
