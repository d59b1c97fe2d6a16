//! Functions of clouds that answer requests. None of these clouds can be had here: servers on loopback take their place, and
//! what they receive is compared with the documentation of each.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Answer, Authority, Connection, Gateway, Kind, LIMIT, Nginx, Origin, each, post, wait_until};

/// One route for everything, answered by a plugin.
fn rules(plugin: &str, conf: &Value) -> Value {
    json!({ "routes": [{ "id": "f", "uri": "/*", "plugins": { (plugin): conf } }] })
}

/// The plugins, each with a function at this URI.
fn plugins(uri: &str) -> Vec<(&'static str, Value)> {
    let action = json!({ "api_host": uri, "service_token": "a:b", "namespace": "n", "action": "a" });
    let forwarded = ["aws-lambda", "azure-functions", "openfunction"];
    let forwarded = forwarded.into_iter().map(|name| (name, json!({ "function_uri": uri })));
    forwarded.chain([("openwhisk", action)]).collect()
}

fn with(mut conf: Value, more: &Value) -> Value {
    conf.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
    conf
}

#[test]
fn calls_of_amazon_are_signed() {
    let function = Origin::echo();
    let iam = json!({ "accesskey": "AKID", "secretkey": "secret", "aws_region": "eu-central-1", "service": "lambda" });
    let conf = json!({ "function_uri": format!("http://{}/run", function.node()), "authorization": { "iam": iam } });
    let gateway = Gateway::start(rules("aws-lambda", &conf));
    let mut client = gateway.client();
    let head = "Host: a.test\r\nContent-Type: text/plain\r\nX-Amz-Meta: 1\r\nContent-Length: 5\r\n";
    let answer = client.request(format!("POST /a?b=2&a=1 HTTP/1.1\r\n{head}\r\nhello"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    let call = function.last();
    assert_eq!(call.target, "/run/a?a=1&b=2");
    let time = call.field("X-Amz-Date").expect("a date").to_owned();
    let value = call.field("Authorization").expect("a signature").to_owned();
    let scope = format!("AWS4-HMAC-SHA256 Credential=AKID/{}/eu-central-1/lambda/aws4_request, ", &time[..8]);
    let names = "SignedHeaders=content-type;host;x-amz-date;x-amz-meta, Signature=";
    assert!(value.starts_with(&format!("{scope}{names}")), "{value}");
    assert_eq!(value.rsplit('=').next().map(str::len), Some(64));
    // The signature depends on the secret, the body and the query.
    let sign = |secret: &str, target: &str, body: &str| {
        let iam = json!({ "accesskey": "AKID", "secretkey": secret });
        let conf =
            json!({ "function_uri": format!("http://{}/run", function.node()), "authorization": { "iam": iam } });
        let gateway = Gateway::start(rules("aws-lambda", &conf));
        gateway.client().request(post(target, body));
        let call = function.last();
        let value = call.field("Authorization").expect("a signature");
        assert!(value.contains("/us-east-1/execute-api/aws4_request"), "{value}");
        (call.field("X-Amz-Date").map(str::to_owned), value.to_owned())
    };
    let usual = sign("secret", "/a", "x");
    for other in [sign("other", "/a", "x"), sign("secret", "/b", "x"), sign("secret", "/a", "y")] {
        assert!(other.0 != usual.0 || other.1 != usual.1);
    }
    // The client's own Authorization is not replaced.
    gateway.client().request("GET /a HTTP/1.1\r\nHost: a.test\r\nAuthorization: mine\r\n\r\n");
    assert_eq!(function.last().field("Authorization"), Some("mine"));
}

#[test]
fn functions_of_azure_may_have_a_master_key() {
    let function = Origin::echo();
    let conf = json!({ "function_uri": format!("http://{}/", function.node()) });
    let mut rules = rules("azure-functions", &conf);
    rules["plugin_metadata"] = json!([{ "id": "azure-functions", "master_apikey": "master", "master_clientid": "me" }]);
    let gateway = Gateway::start(rules);
    assert_eq!(gateway.get("/").status, 200);
    let call = function.last();
    assert_eq!((call.field("x-functions-key"), call.field("x-functions-clientid")), (Some("master"), Some("me")));
}

#[test]
fn a_function_that_is_away_slow_or_lying() {
    let silent = Origin::scripted(Connection::await_close);
    let cut = Origin::scripted(|connection: &mut Connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello");
    });
    let broken = Origin::scripted(|connection: &mut Connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello");
    });
    let uris = [&silent, &cut, &broken].map(|origin| format!("http://{}", origin.node()));
    let all: Vec<(&str, Value)> =
        uris.iter().map(String::as_str).chain(["http://127.0.0.1:1"]).flat_map(plugins).collect();
    each(
        &all,
        |(name, conf)| format!("{name} {conf}"),
        |(name, conf)| {
            let gateway = Gateway::start(rules(name, &with(conf.clone(), &json!({ "timeout": 300 }))));
            let answer = gateway.get("/");
            assert_eq!(answer.status, 503, "{answer:?}");
            gateway.logged("does not answer");
        },
    );
    // A function may answer with fields that belong to a connection: they are not the client's.
    let odd = Origin::answering(|_| {
        Answer::keep(
            "HTTP/1.1 201 Created\r\nX-A: b\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        )
    });
    for (name, conf) in plugins(&format!("http://{}", odd.node())) {
        let answer = Gateway::start(rules(name, &conf)).get("/");
        assert_eq!((answer.status, answer.text().as_str()), (201, "{}"), "{name}");
        assert_eq!(answer.field("Keep-Alive"), None, "{name}");
    }
}

#[test]
fn certificates_of_functions_are_verified() {
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 '{{}}'; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    let port = nginx.node().rsplit(':').next().expect("a port").to_owned();
    for (name, conf) in plugins(&format!("https://localhost:{port}")) {
        let gateway = Gateway::start(rules(name, &conf));
        assert_eq!(gateway.get("/").status, 503, "{name}: nobody knows who signed it");
        let gateway = Gateway::start(rules(name, &with(conf, &json!({ "ssl_verify": false }))));
        wait_until("the name of the function", LIMIT, || (gateway.get("/").status == 200).then_some(()));
    }
}

#[test]
fn connections_to_functions_are_kept_as_told() {
    let all = plugins("http://placeholder");
    each(
        &all,
        |(name, _)| (*name).to_owned(),
        |(name, _)| {
            let function = Origin::answering(|_| Answer::ok("{}"));
            let uri = format!("http://{}", function.node());
            let conf = plugins(&uri).into_iter().find(|(known, _)| known == name).expect("the plugin").1;
            let gateway = Gateway::start(rules(name, &with(conf.clone(), &json!({ "keepalive": false }))));
            (0..3).for_each(|_| assert_eq!(gateway.get("/").status, 200));
            assert_eq!(function.connections(), 3, "none is kept");
            let kept = with(conf, &json!({ "keepalive_pool": 1, "keepalive_timeout": 1000 }));
            let gateway = Gateway::start(rules(name, &kept));
            (0..3).for_each(|_| assert_eq!(gateway.get("/").status, 200));
            assert_eq!(function.connections(), 4, "one is kept");
            wait_until("the idle connection to be closed", LIMIT + Duration::from_secs(5), || {
                (function.open() == 0).then_some(())
            });
        },
    );
}
