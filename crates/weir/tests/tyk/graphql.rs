//! GraphQL APIs: checks by the schema, depths, fields of types, and questions about the schema.

use serde_json::{Value, json};

use super::{Site, error, key, keyed, right, send, told};
use crate::harness::{Gateway, weir};

const SCHEMA: &str = "type Query { me: Person people(first: Int!): [Person] } type Person { name: String! secret: String friends: [Person] }";

fn api(id: &str, more: Value) -> Value {
    let mut api = keyed(id);
    api["graphql"] = json!({"enabled": true, "execution_mode": "proxyOnly", "version": "2", "schema": SCHEMA,
        "proxy": {"request_headers": {"X-Own": "set"}, "auth_headers": {"Authorization": "for the Dashboard"}}});
    crate::loggers::extend(&mut api["graphql"], more);
    api
}

fn ask(gateway: &Gateway, path: &str, key: &str, body: &Value) -> (u16, String) {
    let kind = "Content-Type: application/json";
    told(&send(gateway, &format!("POST /{path}/\nAuthorization: {key}\n{kind}\n\n{body}")))
}

fn query(text: &str) -> Value {
    json!({ "query": text })
}

#[test]
fn requests_are_checked_by_the_schema_and_go_on() {
    let site = Site::new();
    site.api("gq", api("gq", json!({})));
    site.api("hidden", api("hidden", json!({"introspection": {"disabled": true}})));
    let gateway = site.start();
    let own = key(&gateway, &right("gq", json!({"access_rights": {"gq": {}, "hidden": {}}})));
    let good = json!({"query": "query Q($n: Int!) { people(first: $n) { name } }", "operationName": "Q", "variables": {"n": 2}});
    assert_eq!(ask(&gateway, "gq", &own, &good).0, 200);
    let last = site.origin.last();
    assert_eq!(serde_json::from_slice::<Value>(&last.body).expect("JSON"), good, "it goes on as it came");
    assert_eq!((last.field("X-Own"), last.field("Authorization")), (Some("set"), Some(own.as_str())));
    for (body, expected) in [
        (query("{ me { nobody } }"), "nobody"),
        (query("{ me "), "syntax"),
        (query("{ people { name } }"), "first"),
        (query(""), "syntax"),
        (json!({"query": "query A { me { name } } query B { me { name } }"}), "operation"),
        (json!({"query": "query Q($n: Int!) { people(first: $n) { name } }", "variables": {"n": "x"}}), "Int"),
        (query(&format!("{}name{}", "{ me { friends ".repeat(100), "} }".repeat(100))), "recursion"),
        (query(&format!("{{ {} }}", "me { name } ".repeat(6000))), "token"),
    ] {
        let (status, text) = ask(&gateway, "gq", &own, &body);
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let errors = answer["errors"].as_array().map_or(&[][..], Vec::as_slice);
        let messages: Vec<&str> = errors.iter().filter_map(|error| error["message"].as_str()).collect();
        let messages = messages.join(" ").to_lowercase();
        assert!(status == 400 && messages.contains(&expected.to_lowercase()), "{expected}: {status} {text}");
    }
    let empty = send(&gateway, &format!("POST /gq/\nAuthorization: {own}\nContent-Length: 0"));
    assert_eq!(told(&empty), (400, error("the provided request is empty")));
    assert_eq!(ask(&gateway, "gq", &own, &json!("x")).0, 400);
    assert_eq!(ask(&gateway, "gq", "wrong", &query("{ me { name } }")).0, 403);
    // Questions about the schema are answered here.
    let before = site.origin.requests().len();
    let (status, text) = ask(
        &gateway,
        "gq",
        &own,
        &query("{ __schema { queryType { name } } __type(name: \"Person\") { fields { name } } }"),
    );
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((status, &answer["data"]["__schema"]["queryType"]["name"]), (200, &json!("Query")), "{text}");
    assert_eq!(answer["data"]["__type"]["fields"][1]["name"], "secret");
    assert_eq!(site.origin.requests().len(), before);
    let hidden = ask(&gateway, "hidden", &own, &query("{ __schema { queryType { name } } }"));
    assert_eq!(hidden, (403, error("introspection is disabled")));
    let socket = format!(
        "GET /gq/\nAuthorization: {own}\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    );
    assert_eq!(told(&send(&gateway, &socket)), (422, error("websockets are not allowed")));
}

#[test]
fn keys_have_depths_and_fields() {
    let site = Site::new();
    site.api("gq", api("gq", json!({})));
    let gateway = site.start();
    let with = |more: Value, right_more: Value| {
        let mut rights = json!({"gq": {"api_id": "gq", "versions": ["Default"]}});
        crate::loggers::extend(&mut rights["gq"], right_more);
        let mut session = right("gq", more);
        session["access_rights"] = rights;
        key(&gateway, &session)
    };
    let two = "{ me { name } }";
    let three = "{ me { friends { name } } }";
    let deep = (403, error("depth limit exceeded"));
    let of_key = with(json!({"max_query_depth": 2}), json!({}));
    let of_right = with(
        json!({"max_query_depth": 9}),
        json!({"limit": {"rate": 1000, "per": 1, "quota_max": -1, "max_query_depth": 2}}),
    );
    let unlimited = with(json!({"max_query_depth": -1}), json!({}));
    let of_field = with(
        json!({"max_query_depth": 9}),
        json!({"field_access_rights": [
        {"type_name": "Query", "field_name": "me", "limits": {"max_query_depth": 1}}]}),
    );
    for key in [&of_key, &of_right, &of_field] {
        assert_eq!(
            (ask(&gateway, "gq", key, &query(two)).0, ask(&gateway, "gq", key, &query(three))),
            (200, deep.clone())
        );
    }
    assert_eq!(ask(&gateway, "gq", &unlimited, &query(three)).0, 200);
    let secret = "{ me { ...f } } fragment f on Person { secret }";
    let refused = |field: &str| {
        (400, json!({"errors": [{"message": format!("field: {field} is restricted on type: Person")}]}).to_string())
    };
    let restricted = with(json!({}), json!({"restricted_types": [{"name": "Person", "fields": ["secret"]}]}));
    assert_eq!(ask(&gateway, "gq", &restricted, &query(secret)), refused("secret"));
    assert_eq!(ask(&gateway, "gq", &restricted, &query(three)).0, 200);
    let allowed = with(
        json!({}),
        json!({"allowed_types": [{"name": "Query", "fields": ["*"]}, {"name": "Person", "fields": ["name"]}]}),
    );
    assert_eq!(ask(&gateway, "gq", &allowed, &query(three)), refused("friends"));
    assert_eq!(ask(&gateway, "gq", &allowed, &query(two)).0, 200);
    let blind = with(json!({}), json!({"disable_introspection": true}));
    assert_eq!(
        ask(&gateway, "gq", &blind, &query("{ __type(name: \"Person\") { name } }")),
        (403, error("introspection is disabled"))
    );
}

#[test]
fn schemas_that_are_none_and_other_ways_are_refused() {
    for (more, expected) in [
        (json!({"schema": "type Query { me: Nobody }"}), "graphql.schema: expected a schema of GraphQL"),
        (
            json!({"execution_mode": "supergraph"}),
            "graphql.execution_mode: schemas of several APIs in one (schema stitching",
        ),
        (
            json!({"execution_mode": "executionEngine"}),
            "graphql.execution_mode: schemas whose fields have sources of their own",
        ),
        (
            json!({"proxy": {"request_headers": {"X-A": "$tyk_context.path"}}}),
            "request_headers.X-A: expected a text without",
        ),
        (
            json!({"proxy": {"request_headers_rewrite": {"X-A": {"value": "b"}}}}),
            "graphql.proxy.request_headers_rewrite",
        ),
    ] {
        let site = Site::new();
        site.api("gq", api("gq", more));
        let (status, out, err) = weir(&["check", site.apps().to_str().expect("a path")]);
        let text = out + &err;
        assert!(status != 0 && text.contains(expected), "{expected}: {text}");
    }
}
