//! Policies of the chain, and tokens of OpenID Connect.

use serde_json::{Value, json};

use super::{Site, send, told};
use crate::harness::{Answer, Connection, Gateway, LIMIT, Origin, Redis, Response, wait_until};
use crate::openid_connect::{Provider, jwk};
use crate::tokens::{Signer, now};

/// A gateway with a service whose chain begins with these policies and ends with `apicast`.
#[allow(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]
fn with(site: &Site, policies: Value, proxy: Value) -> Gateway {
    let mut chain = policies.as_array().expect("policies").clone();
    chain.push(json!({"name": "apicast"}));
    let mut service = site.service(proxy);
    service["proxy"]["policy_chain"] = json!(chain);
    site.start(json!([service]))
}

#[allow(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]
fn policy(name: &str, configuration: Value) -> Value {
    json!([{"name": name, "version": "builtin", "configuration": configuration}])
}

/// The answer to a request with a good key.
fn good(gateway: &Gateway, request: &str) -> Response {
    let (line, rest) = request.split_once('\n').unwrap_or((request, ""));
    let mark = if line.contains('?') { '&' } else { '?' };
    let rest = if rest.is_empty() { String::new() } else { format!("\n{rest}") };
    send(gateway, &format!("{line}{mark}user_key=good{rest}"))
}

#[test]
fn headers_are_changed() {
    let site = Site::new();
    let conf = json!({
        "request": [
            {"op": "set", "header": "X-Set", "value": "plain {{uri}}"},
            {"op": "set", "header": "X-Liquid", "value": "{{ http_method }} {{ uri }} {{ headers['x-given'] }}", "value_type": "liquid"},
            {"op": "add", "header": "X-Given", "value": "more"},
            {"op": "add", "header": "X-Absent", "value": "more"},
            {"op": "push", "header": "X-Pushed", "value": "{{ service.id }}", "value_type": "liquid"},
            {"op": "delete", "header": "X-Gone"}
        ],
        "response": [{"op": "set", "header": "X-Answer", "value": "{{ credentials.user_key }}", "value_type": "liquid"}]
    });
    let gateway = with(&site, policy("headers", conf), json!({}));
    let response = good(&gateway, "GET /a\nX-Given: g\nX-Gone: x\nX-Set: old");
    assert_eq!((response.status, response.field("x-answer")), (200, Some("good")));
    let seen = site.origin.last();
    let all = |name: &str| seen.fields.all(name).join(",");
    assert_eq!([all("x-set"), all("x-liquid"), all("x-pushed")], ["plain {{uri}}", "GET /a g", "16"]);
    assert_eq!([all("x-given"), all("x-absent"), all("x-gone")], ["g,more", "", ""]);
}

#[test]
fn urls_are_rewritten_before_rules_and_upstreams_see_them() {
    let site = Site::new();
    let conf = json!({
        "commands": [
            {"op": "gsub", "regex": "old", "replace": "new", "methods": ["GET"]},
            {"op": "sub", "regex": "^/(\\w+)/(\\w+)", "replace": "/$2/$1", "options": "i", "break": true},
            {"op": "sub", "regex": "^", "replace": "/never"}
        ],
        "query_args_commands": [
            {"op": "set", "arg": "s", "value": "1"}, {"op": "add", "arg": "a", "value": "2"},
            {"op": "push", "arg": "p", "value": "{{ uri }}", "value_type": "liquid"}, {"op": "delete", "arg": "d"}
        ]
    });
    let rules = json!([{"http_method": "GET", "pattern": "/new$", "metric_system_name": "hits", "delta": 1},
        {"http_method": "GET", "pattern": "/b/new", "metric_system_name": "hits", "delta": 3}]);
    let gateway = with(&site, policy("url_rewriting", conf), json!({"proxy_rules": rules}));
    assert_eq!(good(&gateway, "GET /old/b?d=5&a=1").status, 200);
    assert_eq!(site.origin.last().target, "/b/new?a=1&user_key=good&s=1&a=2&p=/b/new");
    assert!(site.asked()[0].ends_with("usage%5Bhits%5D=3"));
    let conf = json!({"transformations": [
        {"match_rule": "/{a}/sub/{b}", "template": "/x/{b}?who={a}", "methods": ["GET"]}, {"match_rule": "/y", "template": "/z"}
    ]});
    let gateway = with(&site, policy("rewrite_url_captures", conf), json!({}));
    assert_eq!(good(&gateway, "GET /me/sub/12").status, 200);
    assert_eq!(site.origin.last().target, "/x/12?user_key=good&who=me");
}

#[test]
fn requests_go_to_other_upstreams() {
    let site = Site::new();
    let others = Origin::numbered(2);
    let url = |at: usize, path: &str| format!("http://{}{path}", others[at].node());
    let conf = json!({"rules": [{"regex": "/v1/.*", "url": url(0, "/one")}, {"regex": "^/v2", "url": url(1, "")}]});
    let gateway = with(&site, policy("upstream", conf), json!({}));
    assert_eq!(told(&good(&gateway, "GET /v1/x")), (200, "0".to_owned()));
    let seen = others[0].last();
    assert_eq!(
        (seen.target.as_str(), seen.field("host")),
        ("/one/v1/x?user_key=good", Some(others[0].node().as_str()))
    );
    assert_eq!(told(&good(&gateway, "GET /v2")), (200, "1".to_owned()));
    assert_eq!(good(&gateway, "GET /v3").field("x-target"), Some("/v3?user_key=good"));
    // A key is needed all the same.
    assert_eq!(send(&gateway, "GET /v1/x").status, 401);
    let when = |operations: Value, combine: &str| json!({"combine_op": combine, "operations": operations});
    let conf = json!({"rules": [
        {"url": url(0, ""), "host_header": "one.test", "replace_path": "/replaced{{ uri }}",
         "condition": when(json!([{"match": "header", "header_name": "X-To", "op": "==", "value": "0"}]), "and")},
        {"url": url(1, ""), "owner_id": 7, "condition": when(json!([
            {"match": "query_arg", "query_arg_name": "to", "op": "matches", "value": "^1"},
            {"match": "path", "op": "==", "value": "/one"},
            {"match": "liquid", "liquid_value": "{{ http_method }}", "op": "!=", "value": "GET"}
        ]), "or")}
    ]});
    let rules = json!([
        {"http_method": "ANY", "pattern": "/", "metric_system_name": "all", "delta": 1},
        {"http_method": "ANY", "pattern": "/", "metric_system_name": "seven", "delta": 1, "owner_id": 7, "owner_type": "BackendApi"},
        {"http_method": "ANY", "pattern": "/", "metric_system_name": "eight", "delta": 1, "owner_id": 8, "owner_type": "BackendApi"}
    ]);
    let gateway = with(&site, policy("routing", conf), json!({"proxy_rules": rules}));
    assert_eq!(told(&good(&gateway, "GET /x\nX-To: 0")).1, "0");
    let seen = others[0].last();
    assert_eq!((seen.field("host"), seen.target.as_str()), (Some("one.test"), "/replaced/x?user_key=good"));
    for request in ["GET /?to=12", "GET /one", "PUT /"] {
        assert_eq!(told(&good(&gateway, request)).1, "1", "{request}");
    }
    assert!(
        site.asked().iter().any(|target| target.ends_with("usage%5Ball%5D=1&usage%5Bseven%5D=1")),
        "{:?}",
        site.asked()
    );
    assert_eq!(good(&gateway, "GET /?to=2").field("x-target"), Some("/?to=2&user_key=good"));
}

#[test]
fn origins_are_told() {
    let site = Site::new();
    let preflight =
        "OPTIONS /\nOrigin: http://o.test\nAccess-Control-Request-Method: PUT\nAccess-Control-Request-Headers: x-a";
    let gateway = with(&site, policy("cors", json!({})), json!({}));
    let response = send(&gateway, preflight);
    for (name, value) in [
        ("access-control-allow-origin", "http://o.test"),
        ("access-control-allow-methods", "PUT"),
        ("access-control-allow-headers", "x-a"),
        ("access-control-allow-credentials", "true"),
        ("access-control-max-age", "600"),
    ] {
        assert_eq!((response.status, response.field(name)), (204, Some(value)), "{name}");
    }
    assert_eq!(good(&gateway, "GET /").field("access-control-allow-origin"), None);
    let conf = json!({
        "allow_origin": "^https?://(a|b)\\.test$", "allow_methods": ["GET", "POST"], "allow_headers": ["X-One"],
        "allow_credentials": false, "max_age": 5
    });
    let gateway = with(&site, policy("cors", conf), json!({}));
    let response = good(&gateway, "GET /\nOrigin: http://a.test");
    assert_eq!(response.field("access-control-allow-origin"), Some("http://a.test"));
    assert_eq!(response.field("access-control-allow-methods"), Some("GET, POST"));
    assert_eq!(response.field("access-control-allow-credentials"), Some("false"));
    assert_eq!(response.field("access-control-max-age"), Some("5"));
    assert_eq!(good(&gateway, "GET /\nOrigin: http://c.test").field("access-control-allow-origin"), None);
}

#[test]
fn policies_answer_themselves() {
    let site = Site::new();
    // The policy echo comes before apicast, so nobody needs a key.
    let mut service = site.service(json!({}));
    service["proxy"]["policy_chain"] = json!([{"name": "echo", "configuration": {"status": 201}}]);
    let gateway = site.start(json!([service]));
    assert_eq!(told(&send(&gateway, "GET /x?y=1")), (201, "GET /x?y=1 HTTP/1.1\n".to_owned()));
    let response = send(&gateway, "GET /x\nAccept: application/json");
    assert_eq!(response.json(), json!({"request": "GET /x HTTP/1.1"}));
    let gateway = with(&site, policy("echo", json!({"status": 202, "exit": "request"})), json!({}));
    assert_eq!(told(&send(&gateway, "GET /x")), (202, String::new()));
    let gateway = with(&site, policy("maintenance_mode", json!({})), json!({}));
    assert_eq!(told(&good(&gateway, "GET /x")), (503, "Service Unavailable - Maintenance\n".to_owned()));
    assert_eq!(send(&gateway, "GET /x").status, 401, "credentials are looked for in the phase before");
    let conf = json!({
        "status": 504, "message": "{}", "message_content_type": "application/json",
        "condition": {"combine_op": "and", "operations": [
            {"left": "{{ uri }}", "left_type": "liquid", "op": "matches", "right": "^/closed"}
        ]}
    });
    let gateway = with(&site, policy("maintenance_mode", conf), json!({}));
    let response = good(&gateway, "GET /closed");
    assert_eq!((told(&response), response.field("content-type")), ((504, "{}\n".to_owned()), Some("application/json")));
    assert_eq!(good(&gateway, "GET /open").status, 200);
    let conf = json!({"http_statuses": [{"upstream": 200, "apicast": 299}, {"upstream": 201, "apicast": 298}]});
    let gateway = with(&site, policy("statuscode_overwrite", conf), json!({}));
    assert_eq!(good(&gateway, "GET /").status, 299);
}

#[test]
fn addresses_and_sizes_are_checked() {
    let site = Site::new();
    for (kind, ips, status) in [
        ("whitelist", json!(["127.0.0.0/8"]), 200),
        ("whitelist", json!(["10.0.0.0/8", "192.168.0.1"]), 403),
        ("blacklist", json!(["127.0.0.1"]), 403),
        ("blacklist", json!(["10.0.0.1"]), 200),
    ] {
        let conf = json!({"check_type": kind, "ips": ips, "error_msg": "no way"});
        let gateway = with(&site, policy("ip_check", conf), json!({}));
        let response = good(&gateway, "GET /");
        assert_eq!(response.status, status, "{kind} {ips}");
        assert!(status == 200 || told(&response).1 == "no way\n");
    }
    let conf = json!({"check_type": "whitelist", "ips": ["10.1.1.1"], "client_ip_sources": ["X-Forwarded-For", "last_caller"]});
    let gateway = with(&site, policy("ip_check", conf), json!({}));
    assert_eq!(good(&gateway, "GET /\nX-Forwarded-For: 10.1.1.1, 10.2.2.2").status, 200);
    assert_eq!(good(&gateway, "GET /\nX-Forwarded-For: 10.2.2.2").status, 403);
    let gateway = with(&site, policy("payload_limits", json!({"request": 5, "response": 0})), json!({}));
    assert_eq!(told(&good(&gateway, "POST /\nX: y\n\n123456")), (413, "Payload Too Large\n".to_owned()));
    assert_eq!(told(&good(&gateway, "POST /\nX: y\n\n12345")), (200, "12345".to_owned()));
    let gateway = with(&site, policy("payload_limits", json!({"request": 0, "response": 3})), json!({}));
    assert_eq!(told(&good(&gateway, "POST /\nX: y\n\n1234")), (413, "Payload Too Large".to_owned()));
    assert_eq!(told(&good(&gateway, "POST /\nX: y\n\n123")), (200, "123".to_owned()));
}

#[test]
fn callers_without_credentials_get_those_of_a_policy() {
    let site = Site::new();
    let gateway =
        with(&site, policy("default_credentials", json!({"auth_type": "user_key", "user_key": "good"})), json!({}));
    assert_eq!(send(&gateway, "GET /").status, 200);
    assert_eq!(send(&gateway, "GET /?user_key=bad").status, 403);
}

#[test]
fn a_condition_holds_for_a_chain_of_its_own() {
    let site = Site::new();
    let conf = json!({
        "condition": {"combine_op": "or", "operations": [
            {"left": "{{ http_method }}", "left_type": "liquid", "op": "==", "right": "POST", "right_type": "plain"},
            {"left": "{{ headers['X-On'] }}", "left_type": "liquid", "op": "==", "right": "yes"}
        ]},
        "policy_chain": [
            {"name": "apicast.policy.headers", "configuration": {"response": [{"op": "set", "header": "X-C", "value": "1"}]}},
            {"name": "maintenance_mode", "configuration": {"status": 599}}
        ]
    });
    let gateway = with(&site, policy("conditional", conf), json!({}));
    for (request, status) in
        [("GET /", 200), ("POST /\nX: y\n\n", 599), ("GET /\nX-On: yes", 599), ("GET /\nX-On: no", 200)]
    {
        let response = good(&gateway, request);
        assert_eq!((response.status, response.field("x-c")), (status, (status == 599).then_some("1")), "{request}");
    }
}

#[test]
fn rates_are_limited() {
    let site = Site::new();
    let key = |name: &str| json!({"name": name, "name_type": "liquid", "scope": "service"});
    let conf = json!({
        "fixed_window_limiters": [{"key": key("{{ headers['x-who'] }}"), "count": 2, "window": 3600}],
        "limits_exceeded_error": {"status_code": 430}
    });
    let gateway = with(&site, policy("rate_limit", conf), json!({}));
    let statuses: Vec<u16> = (0..4).map(|_| good(&gateway, "GET /\nX-Who: a").status).collect();
    assert_eq!(statuses, [200, 200, 430, 430]);
    assert_eq!(good(&gateway, "GET /\nX-Who: b").status, 200);
    let conf = json!({
        "leaky_bucket_limiters": [{
            "key": {"name": "k"}, "rate": 1, "burst": 0,
            "condition": {"operations": [{"left": "{{ uri }}", "left_type": "liquid", "op": "==", "right": "/limited"}]}
        }]
    });
    let gateway = with(&site, policy("rate_limit", conf), json!({}));
    let statuses: Vec<u16> = (0..5).map(|_| good(&gateway, "GET /limited").status).collect();
    assert!(statuses[0] == 200 && statuses.contains(&429), "{statuses:?}");
    assert!((0..5).all(|_| good(&gateway, "GET /free").status == 200));
    let conf = json!({"connection_limiters": [{"key": {"name": "k"}, "conn": 1, "burst": 0, "delay": 1}]});
    let gateway = with(&site, policy("rate_limit", conf), json!({}));
    // A place is given back at the end of each request.
    assert!((0..5).all(|_| good(&gateway, "GET /").status == 200));
}

#[test]
fn gateways_count_together_in_redis() {
    let site = Site::new();
    let mut redis = Redis::with(&["--requirepass", "secret"], &["-a", "secret"]);
    let conf = |limiter: Value| {
        let mut conf = limiter;
        conf["redis_url"] = json!(format!("redis://:secret@{}/3", redis.address()));
        policy("rate_limit", conf)
    };
    let key = json!({"name": "{{ headers['x-who'] }}", "name_type": "liquid"});
    let windows = conf(json!({"fixed_window_limiters": [{"key": key, "count": 2, "window": 31_536_000}]}));
    let gateways = [(); 2].map(|()| with(&site, windows.clone(), json!({})));
    let ask = |at: usize, who: &str| good(&gateways[at], &format!("GET /\nX-Who: {who}")).status;
    assert_eq!([ask(0, "a"), ask(1, "a"), ask(0, "a"), ask(1, "a")], [200, 200, 429, 429]);
    // A long key is counted as well.
    let long = "w".repeat(300);
    assert_eq!([ask(0, &long), ask(1, &long), ask(1, &long), ask(1, "b")], [200, 200, 429, 200]);
    assert_eq!(redis.cli(&["-n", "3", "DBSIZE"]), "3");
    let buckets = conf(json!({"leaky_bucket_limiters": [{"key": key, "rate": 1, "burst": 0}]}));
    let both = [(); 2].map(|()| with(&site, buckets.clone(), json!({})));
    let statuses: Vec<u16> = (0..6).map(|at| good(&both[at % 2], "GET /").status).collect();
    assert!(statuses[0] == 200 && statuses[1..].contains(&429), "{statuses:?}");
    let connections = conf(json!({"connection_limiters": [{"key": key, "conn": 1, "burst": 0, "delay": 1}]}));
    let gateway = with(
        &site,
        connections,
        json!({"api_backend": format!("http://{}", Origin::scripted(Connection::await_close).node())}),
    );
    let mut held = gateway.client();
    held.send("GET /?user_key=good HTTP/1.1\r\nHost: a.test\r\nX-Who: c\r\n\r\n");
    wait_until("a request under way", LIMIT, || (good(&gateway, "GET /\nX-Who: c").status == 429).then_some(()));
    drop(held);
    // Without Redis the policy fails, and says so; or lets requests pass where it is told to.
    redis.kill();
    assert_eq!(ask(0, "a"), 500);
    let mut lenient = windows[0]["configuration"].clone();
    lenient["configuration_error"] = json!({"status_code": 503, "error_handling": "log"});
    let gateway = with(&site, policy("rate_limit", lenient), json!({}));
    assert_eq!(good(&gateway, "GET /").status, 200);
}

#[test]
fn answers_add_to_metrics() {
    let site = Site::new();
    let operation = |left: &str, right: &str| json!({"combine_op": "and", "operations": [{"left": left, "left_type": "liquid", "op": "==", "right": right}]});
    let conf = json!({"rules": [
        {"metric": "{{ resp.headers['x-method'] | downcase }}", "increment": "2", "condition": operation("{{ status }}", "200")},
        {"metric": "never", "increment": "1", "condition": operation("{{ status }}", "500")}
    ]});
    let gateway = with(&site, policy("custom_metrics", conf), json!({}));
    assert_eq!(good(&gateway, "POST /\nX: y\n\n1234").status, 200);
    wait_until("a report", LIMIT, || {
        let bodies = site.backend.complete().into_iter().filter(|request| request.method == "POST");
        let all: String = bodies.map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect();
        assert!(!all.contains("never"), "{all}");
        all.contains("%5Buser_key%5D=good&transactions%5B0%5D%5Busage%5D%5Bpost%5D=2").then_some(())
    });
}

#[test]
fn connections_and_attempts_are_those_of_policies() {
    let site = Site::new();
    let slow = Origin::scripted(|connection| {
        while connection.request().is_some() {
            connection.await_close();
        }
    });
    let conf = policy("upstream_connection", json!({"connect_timeout": 1, "send_timeout": 1, "read_timeout": 0.2}));
    let gateway = with(&site, conf, json!({"api_backend": format!("http://{}", slow.node())}));
    assert_eq!(good(&gateway, "GET /").status, 504);
    // The first connection breaks off, and the second attempt is answered.
    let flaky = Origin::scripted(|connection| {
        if connection.number == 1 {
            connection.request();
            connection.reset();
            return;
        }
        connection.answer_all(&|_: &_| Answer::ok("second"));
    });
    let proxy = json!({"api_backend": format!("http://{}", flaky.node())});
    let gateway = with(&site, policy("retry", json!({"retries": 1})), proxy);
    assert_eq!(told(&good(&gateway, "GET /")), (200, "second".to_owned()));
}

/// A service whose tokens a provider signs.
#[allow(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]
fn tokens(site: &Site, policies: Value, proxy: Value) -> Value {
    let mut service = site.service(proxy);
    service["backend_version"] = json!("oauth");
    service["proxy"]["authentication_method"] = json!("oidc");
    service["proxy"]["credentials_location"] = json!("headers");
    let mut chain = policies.as_array().expect("policies").clone();
    chain.push(json!({"name": "apicast"}));
    service["proxy"]["policy_chain"] = json!(chain);
    service
}

#[allow(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]
fn claims(more: Value) -> Value {
    let mut claims = json!({
        "iss": "http://issuer.test", "sub": "s", "aud": "a", "azp": "client", "exp": now().as_secs() + 600, "typ": "Bearer",
        "realm_access": {"roles": ["reader"]}, "resource_access": {"app": {"roles": ["writer"]}}
    });
    for (name, value) in more.as_object().expect("claims") {
        claims[name] = value.clone();
    }
    claims
}

fn bearer(gateway: &Gateway, line: &str, token: &str) -> Response {
    send(gateway, &format!("{line}\nAuthorization: Bearer {token}"))
}

#[test]
fn tokens_are_verified_by_keys_of_the_configuration() {
    let site = Site::new();
    let signer = Signer::new("RS256");
    let public = std::fs::read_to_string(signer.file("public")).expect("a key");
    let service = tokens(&site, json!([]), json!({}));
    let document = json!({
        "services": [service],
        "oidc": [{
            "issuer": "http://issuer.test", "config": {"id_token_signing_alg_values_supported": ["RS256"]},
            "keys": {"k1": {"pem": public, "alg": "RS256"}}
        }]
    });
    let gateway = crate::harness::Start::at(&site.file(&document)).start();
    let token = |header: Value, more: Value| signer.token_with(&header, &claims(more));
    let header = json!({"alg": "RS256", "kid": "k1"});
    let whole = token(header.clone(), json!({}));
    for _ in 0..2 {
        assert_eq!(bearer(&gateway, "GET /", &whole).status, 200);
    }
    let asked = site.asked();
    assert_eq!(
        asked[0],
        "/transactions/oauth_authrep.xml?service_token=token&service_id=16&app_id=client&usage%5Bhits%5D=1"
    );
    assert_eq!(send(&gateway, &format!("GET /\nAccess-Token: {whole}")).status, 200);
    assert_eq!(send(&gateway, "GET /").status, 401);
    for (header, more) in [
        (json!({"alg": "RS256", "kid": "k2"}), json!({})),
        (json!({"alg": "RS256"}), json!({})),
        (header.clone(), json!({"iss": "http://other.test"})),
        (header.clone(), json!({"exp": now().as_secs() - 5})),
        (header.clone(), json!({"exp": null})),
        (header.clone(), json!({"sub": null})),
        (header.clone(), json!({"typ": "Refresh"})),
        (header.clone(), json!({"nbf": now().as_secs() + 600})),
        (header.clone(), json!({"azp": null})),
        (header.clone(), json!({"azp": "stranger"})),
    ] {
        assert_eq!(bearer(&gateway, "GET /", &token(header.clone(), more.clone())).status, 403, "{header} {more}");
    }
    let forged = Signer::new("RS256").token_with(&header, &claims(json!({})));
    assert_eq!(bearer(&gateway, "GET /", &forged).status, 403);
}

#[test]
fn tokens_are_verified_by_a_provider_and_checked_by_policies() {
    let site = Site::new();
    let signer = Signer::new("ES256");
    let provider = Provider::new(json!({"keys": [jwk(&signer, "k")]}));
    let issuer = format!("http://id:secret@{}", provider.origin.node());
    let rule = |resource: &str, claim: &str, value: &str| {
        json!({"resource": resource, "methods": ["GET"], "operations": [
            {"jwt_claim": claim, "jwt_claim_type": "plain", "op": "==", "value": value}
        ]})
    };
    let policies = json!([
        {"name": "jwt_claim_check", "configuration": {
            "error_message": "wrong claim", "rules": [rule("/claim", "sub", "s"), rule("/other", "sub", "else")]
        }},
        {"name": "keycloak_role_check", "configuration": {"scopes": [
            {"resource": "/claim", "methods": ["ANY"]},
            {"resource": "/other"},
            {"resource": "/realm", "realm_roles": [{"name": "reader"}]},
            {"resource": "/client", "client_roles": [{"client": "app", "name": "writer"}]},
            {"resource": "/admin", "realm_roles": [{"name": "admin"}]}
        ]}}
    ]);
    let proxy = json!({
        "oidc_issuer_endpoint": issuer, "jwt_claim_with_client_id": "{{ app.id }}", "jwt_claim_with_client_id_type": "liquid"
    });
    let gateway = site.start(json!([tokens(&site, policies, proxy)]));
    let token = signer.token_with(&json!({"alg": "ES256", "kid": "k"}), &claims(json!({"app": {"id": "client"}})));
    for (line, status, body) in [
        ("GET /claim", 200, ""),
        ("GET /other", 403, "wrong claim\n"),
        ("GET /realm", 200, ""),
        ("GET /client", 200, ""),
        ("GET /admin", 403, "Authentication failed"),
        ("GET /nowhere", 403, "Authentication failed"),
    ] {
        assert_eq!(told(&bearer(&gateway, line, &token)), (status, body.to_owned()), "{line}");
    }
    let forged = Signer::new("ES256").token_with(&json!({"alg": "ES256", "kid": "k"}), &claims(json!({})));
    assert_eq!(bearer(&gateway, "GET /claim", &forged).status, 403);
}

#[test]
fn providers_are_asked_about_tokens() {
    let site = Site::new();
    let provider = Origin::answering(|request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        match request.field("authorization") {
            // me:secret
            Some("Basic bWU6c2VjcmV0") if body.starts_with("token=good&") => Answer::ok("{\"active\":true}"),
            Some("Basic bWU6c2VjcmV0") if body.starts_with("token=broken&") => Answer::status(500, ""),
            Some(_) => Answer::ok("{\"active\":false}"),
            None => Answer::status(401, ""),
        }
    });
    let conf = json!({
        "auth_type": "client_id+client_secret", "client_id": "me", "client_secret": "secret",
        "introspection_url": format!("http://{}/about", provider.node()), "max_ttl_tokens": 60, "max_cached_tokens": 10
    });
    let gateway = with(&site, policy("token_introspection", conf), json!({}));
    for (token, status) in [("good", 200), ("good", 200), ("revoked", 403), ("broken", 403)] {
        assert_eq!(good(&gateway, &format!("GET /\nAuthorization: Bearer {token}")).status, status, "{token}");
    }
    assert_eq!(good(&gateway, "GET /").status, 403);
    assert_eq!(provider.requests().len(), 3, "the answer about a good token is remembered");
}
