//! Variables that stand in the body of a request: `post_arg_…`, `post_arg.…` and `graphql_…`, in conditions of routes and in
//! what plugins do. A body is read for them only where one of them is asked for.

use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Origin, chunked, each, wait_until};

const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

/// A route for `/x` that tells its id in a field of the answer.
fn route(id: &str, fields: Value, origin: &Origin) -> Value {
    let mut route = json!({
        "id": id, "uri": "/x", "upstream": { "nodes": { (origin.node()): 1 } },
        "plugins": { "response-rewrite": { "headers": { "set": { "X-Route": id } } } },
    });
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    route.as_object_mut().expect("a route is an object").extend(fields);
    route
}

/// Routes by the conditions of the first ones; `rest` takes what they leave.
fn gateway(conditions: &[(&str, Value)], origin: &Origin, settings: Value) -> Gateway {
    let first = conditions.iter().map(|(id, vars)| route(id, json!({ "vars": vars, "priority": 1 }), origin));
    let routes: Vec<_> = first.chain([route("rest", json!({}), origin)]).collect();
    Gateway::with(json!({ "routes": routes }), settings)
}

fn post(media: &str, body: &str) -> String {
    let length = body.len();
    format!("POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Type: {media}\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn post_in_chunks(media: &str, body: &str) -> Vec<u8> {
    let head =
        format!("POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Type: {media}\r\nTransfer-Encoding: chunked\r\n\r\n");
    [head.as_bytes(), &chunked(body.as_bytes(), 5)].concat()
}

#[test]
fn a_route_is_found_by_what_stands_in_the_body() {
    let origin = Origin::echo();
    let conditions = [
        ("form", json!([["post_arg_name", "==", "j ack"]])),
        ("field", json!([["post_arg.tag", "has", "b"]])),
        ("json", json!([["post_arg.user.id", "==", 7]])),
        ("list", json!([["post_arg.messages[*].content[*].type", "has", "image_url"]])),
        ("part", json!([["post_arg.model", "in", ["gpt", "llm"]]])),
        ("mutation", json!([["graphql_operation", "==", "mutation"], ["graphql_name", "==", "Add"]])),
        ("repo", json!([["graphql_root_fields", "has", "repo"]])),
    ];
    let gateway = gateway(&conditions, &origin, json!({}));
    let multipart = "multipart/form-data; boundary=b";
    let part = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nllm\r\n--b--\r\n";
    let graphql = |query: &str| post("application/graphql", query);
    let cases = [
        (post(FORM, "a=1&name=j%20ack&name=x"), "form"),
        (post("application/x-www-form-urlencoded; charset=utf-8", "name=j+ack"), "form"),
        (post(FORM, "name=x&name=j+ack"), "rest"),
        (post("text/plain", "name=j+ack"), "rest"),
        (post(FORM, "tag=a&tag=b"), "field"),
        (post(FORM, "tag=a"), "rest"),
        (post(JSON, r#"{"user":{"id":7}}"#), "json"),
        (post(JSON, r#"{"user":{"id":"8"}}"#), "rest"),
        (post(JSON, r#"{"user":{"id":7}"#), "rest"),
        (post(JSON, r#"{"messages":[{"content":[{"type":"text"},{"type":"image_url"}]}]}"#), "list"),
        (post(JSON, r#"{"model":"gpt"}"#), "part"),
        (post(multipart, part), "part"),
        (graphql("mutation Add { add(id: 1) { id } }"), "mutation"),
        (graphql("mutation Other { add }"), "rest"),
        (graphql("{ owner { name } repo { created } }"), "repo"),
        (post(JSON, r#"{"query":"query q { ...F } fragment F on Q { repo }","operationName":"q"}"#), "repo"),
        ("GET /x?query=query%20q%7B%20repo%20%7D HTTP/1.1\r\nHost: a.test\r\n\r\n".into(), "repo"),
        ("GET /x?query=%7Bowner%7D HTTP/1.1\r\nHost: a.test\r\n\r\n".into(), "rest"),
        ("GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n".into(), "rest"),
        (post(FORM, ""), "rest"),
    ];
    each(
        &cases,
        |(request, _)| request.clone(),
        |(request, id)| {
            let response = gateway.client().request(request);
            assert_eq!((response.status, response.field("x-route")), (200, Some(*id)), "{response:?}");
            let body = request.split_once("\r\n\r\n").map(|(_, body)| body);
            assert_eq!(Some(response.text().as_str()), body, "the body goes up as it came");
        },
    );
    let mut client = gateway.client();
    // The bytes behind a body are the next request.
    client.send([post_in_chunks(FORM, "name=j+ack"), post(JSON, r#"{"model":"gpt"}"#).into_bytes()].concat());
    for (id, body) in [("form", "name=j+ack"), ("part", r#"{"model":"gpt"}"#)] {
        let response = client.response();
        assert_eq!((response.field("x-route"), response.text().as_str()), (Some(id), body));
    }
    // A client that holds its body back is asked for it.
    let held = post(FORM, "name=j+ack").replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
    let (head, body) = held.split_at(held.len() - "name=j+ack".len());
    client.send(head);
    assert_eq!(client.head().start, "HTTP/1.1 100 Continue");
    client.send(body);
    assert_eq!(client.response().field("x-route"), Some("form"));
}

#[test]
fn a_path_with_two_readings_is_decided_with_the_body() {
    let origin = Origin::echo();
    let mut guarded = route("guarded", json!({ "uri": "/x/*", "vars": [["post_arg_a", "==", "1"]] }), &origin);
    guarded["priority"] = 1.into();
    let routes = [guarded, route("rest", json!({ "uri": "/*" }), &origin)];
    let gateway = Gateway::with(json!({ "routes": routes }), json!({}));
    let to = |path: &str, body: &str| post(FORM, body).replace("/x ", &format!("{path} "));
    // Both readings, /y;/../x/z and /x/z, are on the way to the same route or to different ones by the body alone.
    for (path, body, status) in [("/x/z;v=1", "a=1", 200), ("/x/z;v=1", "a=2", 200), ("/y;/../x/z", "a=2", 200)] {
        assert_eq!(gateway.client().request(to(path, body)).status, status, "{path} {body}");
    }
    assert_eq!(gateway.client().request(to("/x\\y", "a=2")).status, 200);
    assert_eq!(gateway.client().request(to("/x\\y", "a=1")).status, 400, "another server reads /x/y");
}

#[test]
fn without_such_a_condition_no_body_is_waited_for() {
    let origin = Origin::echo();
    let conditions = [("form", json!([["uri", "==", "/x"], ["http_x_form", "==", "1"], ["post_arg_a", "==", "1"]]))];
    let gateway = gateway(&conditions, &origin, json!({ "limits": { "body_variables": 1000 } }));
    let seen_before_body = |request: String, body: &str| {
        let before = origin.requests().len();
        let mut client = gateway.client();
        client.send(request);
        // The head reaches the origin while the body is still to come.
        wait_until("the head at the origin", LIMIT, || (origin.requests().len() > before).then_some(()));
        client.send(body);
        assert_eq!(client.response().status, 200);
    };
    let head = |fields: &str, length: usize| {
        format!("POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Type: {FORM}\r\n{fields}Content-Length: {length}\r\n\r\n")
    };
    // The conditions before it fail; the body is of another kind, or too long.
    seen_before_body(head("", 3), "a=1");
    seen_before_body(head("X-Form: 1\r\n", 3).replace(FORM, "text/plain"), "a=1");
    let long = format!("a=1&b={}", "x".repeat(1000));
    seen_before_body(head("X-Form: 1\r\n", long.len()), &long);
    // The same condition with a body of its kind waits, and holds.
    let response = gateway.client().request(head("X-Form: 1\r\n", 3) + "a=1");
    assert_eq!(response.field("x-route"), Some("form"));
}

#[test]
fn bodies_over_a_limit_are_not_looked_at() {
    let origin = Origin::echo();
    let conditions = [("form", json!([["post_arg_a", "==", "1"]]))];
    let limits = json!({ "body_variables": 1000, "buffered_body": 2000 });
    let gateway = gateway(&conditions, &origin, json!({ "limits": limits }));
    let form = |size: usize| format!("a=1&{}", "x".repeat(size - 4));
    for (request, status, id) in [
        (post(FORM, &form(1000)).into_bytes(), 200, Some("form")),
        (post(FORM, &form(1001)).into_bytes(), 200, Some("rest")),
        (post_in_chunks(FORM, &form(1000)), 200, Some("form")),
        (post_in_chunks(FORM, &form(1001)), 200, Some("rest")),
        // The length cannot be known before the body is here.
        (post_in_chunks(FORM, &form(2001)), 413, None),
    ] {
        let response = gateway.client().request(request);
        assert_eq!((response.status, response.field("x-route")), (status, id));
    }
    let off = self::gateway(&conditions, &origin, json!({ "limits": { "body_variables": 0 } }));
    assert_eq!(off.client().request(post(FORM, "a=1")).field("x-route"), Some("rest"));
}

#[test]
fn bodies_for_variables_count_in_the_budget() {
    let origin = Origin::echo();
    let conditions = [("form", json!([["post_arg_a", "==", "1"]]))];
    let limits = json!({ "body_variables": "1MiB", "buffers": "4MiB" });
    let gateway = gateway(&conditions, &origin, json!({ "limits": limits }));
    let body = format!("a=1&b=%20{}", "x".repeat((1 << 20) - 100));
    let whole = post(FORM, &body);
    let mut held: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for client in &mut held {
        client.send(&whole[..whole.len() - 1]);
    }
    // Three of them take some 3 MiB, and what the fourth is to be decoded into has no room any more.
    wait_until("the bodies to be held", LIMIT, || (gateway.metric("weir_buffers_bytes", &[]) > 2.9e6).then_some(()));
    assert_eq!(gateway.client().request(&whole).status, 503);
    held.clear();
    wait_until("the budget to come back", LIMIT, || {
        (gateway.client().request(&whole).field("x-route") == Some("form")).then_some(())
    });
}

#[test]
fn plugins_read_what_stands_in_the_body() {
    let origin = Origin::echo();
    let nodes = json!({ "nodes": { (origin.node()): 1 } });
    let routes = json!([
        { "id": "split", "uri": "/split", "upstream": nodes, "plugins": {
            "traffic-split": { "rules": [{
                "match": [{ "vars": [["post_arg_id", "==", "1"]] }],
                "weighted_upstreams": [{ "upstream": { "nodes": { (origin.node()): 1 }, "pass_host": "rewrite", "upstream_host": "split.test" } }],
            }] } } },
        { "id": "filter", "uri": "/filter", "upstream": nodes, "plugins": {
            "mocking": { "response_example": "mocked", "_meta": { "filter": [["post_arg.mock", "==", true]] } } } },
        { "id": "template", "uri": "/template", "upstream": nodes, "plugins": {
            "proxy-rewrite": { "headers": { "set": { "X-Id": "$post_arg.user.id-$post_arg_id", "X-Fields": "$graphql_root_fields" } } } } },
        { "id": "response", "uri": "/response", "upstream": nodes, "plugins": {
            "response-rewrite": { "headers": { "set": { "X-Id": "$post_arg.id" } } } } },
        { "id": "limit", "uri": "/limit", "upstream": nodes, "plugins": {
            "limit-count": { "count": 1, "time_window": 600, "key": "post_arg_id", "key_type": "var" } } },
        { "id": "hash", "uri": "/hash", "upstream": { "type": "chash", "hash_on": "vars_combinations", "key": "$post_arg_id",
            "nodes": { (origin.node()): 1, (Origin::echo().node()): 1 } } },
    ]);
    let gateway = Gateway::start(json!({ "routes": routes }));
    let send = |path: &str, media: &str, body: &str| {
        gateway.client().request(post(media, body).replace("/x ", &format!("{path} ")))
    };
    assert_eq!(send("/split", FORM, "id=1").status, 200);
    assert_eq!(origin.last().field("host"), Some("split.test"));
    assert_eq!(send("/split", FORM, "id=2").status, 200);
    assert_eq!(origin.last().field("host"), Some("a.test"));

    assert_eq!(send("/filter", JSON, r#"{"mock":true}"#).text(), "mocked");
    assert_eq!(send("/filter", JSON, r#"{"mock":"true"}"#).text(), r#"{"mock":"true"}"#);

    assert_eq!(send("/template", JSON, r#"{"user":{"id":4.0},"query":"{a b}"}"#).status, 200);
    assert_eq!(origin.last().field("x-id"), Some("4.0-"));
    assert_eq!(origin.last().field("x-fields"), Some(r#"["a","b"]"#));
    assert_eq!(send("/template", FORM, "id=5").status, 200);
    assert_eq!(origin.last().field("x-id"), Some("-5"));

    assert_eq!(send("/response", JSON, r#"{"id":"a\n\u0062"}"#).field("x-id"), Some("ab"), "no line end in a field");
    assert_eq!(send("/response", JSON, r#"{"id":"a\u0062"}"#).field("x-id"), Some("ab"));

    assert_eq!(["1", "2", "1"].map(|id| send("/limit", FORM, &format!("id={id}")).status), [200, 200, 503]);
}

#[test]
fn a_filter_reads_the_body_where_its_plugin_waits_for_a_secret() {
    let origin = Origin::echo();
    let mocking = json!({
        "response_example": "$secret://vault/1/jack/key", "_meta": { "filter": [["post_arg_mock", "==", "1"]] },
    });
    let mut route = route("waits", json!({}), &origin);
    route["plugins"] = json!({ "mocking": mocking });
    let gateway = Gateway::start(json!({ "routes": [route] }));
    for (body, status) in [("mock=1", 503), ("mock=2", 200)] {
        assert_eq!(gateway.client().request(post(FORM, body)).status, status, "{body}");
    }
}
