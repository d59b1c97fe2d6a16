//! graphql-limit-count: weights of fields, with a real service of GraphQL, and counts over several gateways.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Gateway, LIMIT, Origin, Process, Redis, Response, Start, repository, route_with, wait_until,
};

/// Status of an operation of three levels.
fn ask(gateway: &Gateway) -> u16 {
    gateway.send_to("a.test", "POST /\nContent-Type: application/graphql\n\n{ a { b { c } } }").status
}

#[test]
fn gateways_count_costs_in_one_redis() {
    for more in [json!({}), json!({ "lease": true }), json!({ "sync_interval": 0.2 })] {
        let (origin, redis) = (Origin::hello(), Redis::start());
        let mut conf = json!({
            "count": 10, "time_window": 600, "rejected_code": 429, "policy": "redis",
            "redis_host": "127.0.0.1", "redis_port": redis.port,
        });
        crate::loggers::extend(&mut conf, more.clone());
        let config = route_with(
            json!({ "plugins": { "graphql-limit-count": conf } }),
            json!({ "nodes": { (origin.node()): 1 } }),
        );
        let start = |config: &Value| Start::new(config).workers(1).start();
        let gateways = [start(&config), start(&config)];
        let passed: usize = (0..6).filter(|at| ask(&gateways[at % 2]) == 200).count();
        match more {
            // Each operation counts as three.
            Value::Object(ref fields) if fields.is_empty() => assert_eq!(passed, 3),
            // A gateway may hold a share that the other one needs.
            Value::Object(ref fields) if fields.contains_key("lease") => assert!(passed <= 3, "{passed}"),
            // Each gateway knows the other's operations by the next exchange.
            _ => assert!((3..=6).contains(&passed), "{passed}"),
        }
    }
}

/// A service of GraphQL, by graphql-core for Python.
struct Shop {
    node: String,
    /// A line for each question about its schema: path, `Host` and `X-Token`.
    questions: Receiver<String>,
    _process: Process,
}

impl Shop {
    fn start() -> Self {
        let mut command = Command::new(repository().join("target/test-tools/bin/python"));
        command.arg("-I").arg(repository().join("tests/graphql_peer.py")).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let output = process.child().stdout.take().expect("its output");
        let (sender, questions) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let port = questions.recv_timeout(LIMIT).expect("a port: tools/install-test-deps installs what it needs");
        Self { node: format!("127.0.0.1:{port}"), questions, _process: process }
    }

    fn asked(&self) -> Vec<String> {
        self.questions.try_iter().collect()
    }
}

/// A service with a route `/NAME` for each configuration, and weights `ID: VALUE` below it.
fn shop(node: &str, confs: &[(&str, Value)], weights: &[Value]) -> Value {
    let mut services = vec![json!({ "id": "shop", "upstream": { "nodes": { (node): 1 } } })];
    for (at, weight) in weights.iter().enumerate() {
        let mut weight = weight.clone();
        weight["id"] = format!("shop/graphql_cost_decorations/w{at}").into();
        services.push(weight);
    }
    let route = |(name, more): &(&str, Value)| {
        let mut conf = json!({ "count": 1_000_000_000_u64, "time_window": 600 });
        crate::loggers::extend(&mut conf, more.clone());
        json!({ "id": name, "uri": format!("/{name}"), "service_id": "shop", "plugins": { "graphql-limit-count": conf } })
    };
    json!({ "routes": confs.iter().map(route).collect::<Vec<_>>(), "services": services })
}

/// The answer to an operation.
fn operate(gateway: &Gateway, path: &str, asked: &Value) -> Response {
    gateway.send_to("a.test", &format!("POST {path}\nContent-Type: application/json\n\n{asked}"))
}

fn cost(response: &Response) -> u64 {
    let told = response.field("x-graphql-query-cost").unwrap_or_else(|| panic!("no cost: {response:?}"));
    told.parse().expect("a number")
}

#[test]
fn fields_count_by_their_weights() {
    let shop_process = Shop::start();
    let strategies = [
        ("fields", json!({ "cost_strategy": "complexity" })),
        ("numbers", json!({ "cost_strategy": "node_quantifier", "max_cost": 5000 })),
        ("unresolved", json!({ "cost_strategy": "node_quantifier", "resolve_variables": false })),
        ("scaled", json!({ "cost_strategy": "complexity", "score_factor": 0.1 })),
        ("depth", json!({})),
    ];
    let weights = [
        json!({ "field_path": "Query.products", "mul_arguments": ["first"] }),
        json!({ "field_path": "Product.reviews", "mul_arguments": ["first"] }),
        json!({ "field_path": "Product.price", "add_value": 7 }),
        json!({ "field_path": "Query.node.price", "add_value": 100 }),
        json!({ "field_path": "Mutation.restock", "add_value": 0, "add_arguments": ["count", "other"] }),
        json!({ "field_path": "Review", "add_value": 3, "mul_value": 2 }),
    ];
    let mut config = shop(&shop_process.node, &strategies, &weights);
    let all = json!({ "graphql-limit-count": { "count": 1000, "time_window": 600, "cost_strategy": "complexity" } });
    config["routes"].as_array_mut().expect("routes").push(
        json!({ "id": "alone", "uri": "/alone", "plugins": all, "upstream": { "nodes": { (&shop_process.node): 1 } } }),
    );
    let gateway = Start::new(config).workers(1).start();
    let pages = "{ products(first: 50) { nodes { reviews(first: 20) { nodes { id: __typename } } } } }";
    let variable = "query Q($n: Int = 100) { products(first: $n) { nodes { reviews(first: 2) { __typename } } } }";
    for (path, query, variables, expected) in [
        // Each cost is rounded up from a hundredth more, as APISIX does.
        ("/numbers", pages, json!({}), 1 + 50 + 1),
        ("/fields", pages, json!({}), ((((1 + 3) + 1) * 20 + 1 + 1) * 50 + 1) + 1 + 1),
        ("/scaled", pages, json!({}), 511),
        ("/depth", pages, json!({}), 5),
        ("/fields", "{ node { id } }", json!({}), 4),
        ("/fields", "{ node { ... on Product { price } } }", json!({}), 100 + 1 + 1 + 1),
        ("/fields", "{ top { price ...P } } fragment P on Product { again: price }", json!({}), 7 + 7 + 1 + 1 + 1),
        ("/fields", "mutation { restock(count: 4) { id } }", json!({}), 1 + 4 + 1 + 1),
        // Values of variables, then their defaults; then those of the schema.
        ("/numbers", variable, json!({ "n": 3 }), 1 + 3 + 1),
        ("/numbers", variable, json!({}), 1 + 100 + 1),
        ("/numbers", "{ products { nodes { reviews(first: 1) { __typename } } } }", json!({}), 1 + 10 + 1),
        ("/unresolved", variable, json!({ "n": 3 }), 1 + 1),
        // No discount by what is no count.
        ("/numbers", "{ products(first: -5) { nodes { reviews(first: 1) { __typename } } } }", json!({}), 2),
        ("/fields", variable, json!({ "n": "many" }), 7),
        ("/alone", pages, json!({}), 7),
    ] {
        let asked = json!({ "query": query, "variables": variables });
        let response = operate(&gateway, path, &asked);
        assert_eq!((response.status, cost(&response)), (200, expected), "{path} {query} {variables}");
    }
    // Of several operations the one that is asked for counts, and without a name the costliest one.
    let two = "query A { products(first: 7) { __typename } } query B { products(first: 9) { nodes { id } } }";
    let charge = |name: &str| cost(&operate(&gateway, "/fields", &json!({ "query": two, "operationName": name })));
    assert_eq!((charge("A"), charge("B"), charge("C")), (10, 21, 21));
    let dear = operate(&gateway, "/numbers", &json!({ "query": pages.replace("50", "9000") }));
    assert!(dear.status == 403 && dear.text().contains("query cost 9002 exceeds max_cost 5000"), "{dear:?}");
    // The ways of asking are the same, so there was one question, with nothing of a client's.
    let host = gateway.addr.port();
    assert!(matches!(&shop_process.asked()[..], [one] if one == "/numbers a.test None"), "{host}");
}

#[test]
fn documents_cannot_make_the_gateway_work_without_end() {
    let shop_process = Shop::start();
    let weights = [json!({ "field_path": "Product", "mul_value": 1e300 })];
    let strategy = json!({ "cost_strategy": "complexity" });
    let gateway = Start::new(shop(&shop_process.node, &[("fields", strategy)], &weights)).workers(1).start();
    let ask = |query: &str| operate(&gateway, "/fields", &json!({ "query": query }));
    let fragments = |count: usize, body: &dyn Fn(usize) -> String| -> String {
        (0..count).map(|at| format!("fragment F{at} on Query {{ {} }} ", body(at))).collect()
    };
    // Each fragment has the next one twice.
    let doubled = fragments(30, &|at| if at < 29 { format!("...F{0} ...F{0}", at + 1) } else { "__typename".into() });
    let chained = fragments(600, &|at| if at < 599 { format!("...F{}", at + 1) } else { "__typename".into() });
    for query in [format!("{{ ...F0 }} {doubled}"), format!("{{ ...F0 }} {chained}")] {
        let refused = ask(&query);
        assert!(refused.status == 400 && refused.text().contains("expands too many selections"), "{refused:?}");
    }
    for query in ["{ a".repeat(500), format!("{{ {} }}", "a ".repeat(20_000)), "{ products(".into()] {
        let refused = ask(&query);
        assert!(refused.status == 400 && refused.text().contains("failed to parse graphql query"), "{refused:?}");
    }
    // Circles end, and costs without end are the largest one: they are more than the quota.
    assert_eq!(cost(&ask("{ ...A } fragment A on Query { ...B __typename } fragment B on Query { ...A }")), 3);
    let endless = ask("{ top { again: __typename } node { ... on Product { price } } t: top { x: id y: price } }");
    assert_eq!((endless.status, cost(&endless)), (503, 1 << 53));
}

#[test]
fn weights_are_resources_below_services() {
    let shop_process = Shop::start();
    let gateway = Start::stored().start();
    let put = |path: &str, body: &Value| gateway.ask("PUT", path, &body.to_string());
    let refused = |(status, told): (u16, Value), expected: u16, says: &str| {
        let message = told["error_msg"].as_str().or_else(|| told["message"].as_str()).unwrap_or_default();
        assert!(status == expected && message.contains(says), "{status} {told}");
    };
    let service = json!({ "upstream": { "nodes": { (&shop_process.node): 1 } } });
    let products = json!({ "field_path": "Query.products", "mul_arguments": ["first"] });
    let place = "services/shop/graphql_cost_decorations";
    refused(put(&format!("{place}/p"), &products), 404, "service not found");
    assert_eq!(put("services/shop", &service).0, 201);
    refused(gateway.ask("GET", place, ""), 404, "Key not found");
    let conf = json!({ "count": 100_000, "time_window": 600, "cost_strategy": "complexity" });
    let route = json!({ "uri": "/g", "service_id": "shop", "plugins": { "graphql-limit-count": conf } });
    assert_eq!(put("routes/g", &route).0, 201);
    let charge = || cost(&operate(&gateway, "/g", &json!({ "query": "{ products(first: 9) { nodes { id } } }" })));
    assert_eq!(charge(), 5);
    let (status, kept) = put(&format!("{place}/p"), &products);
    assert_eq!(status, 201, "{kept}");
    let value = &kept["value"];
    assert_eq!((&value["id"], &value["service_id"]), (&json!("p"), &json!("shop")));
    assert_eq!(charge(), 21);
    for (path, body, status, says) in [
        (
            "q",
            json!({ "field_path": "Query.products" }),
            400,
            "field_path Query.products is already decorated on this service by [p]",
        ),
        ("q", json!({ "field_path": "Query.products.", "add_value": 1 }), 400, "field_path"),
        ("q", json!({ "add_value": 1 }), 400, "property \"field_path\" is required"),
        ("q", json!({ "field_path": "Query", "add_value": -1 }), 400, "add_value"),
        ("q", json!({ "field_path": "Query", "mul_arguments": [""] }), 400, "mul_arguments"),
        (
            "q",
            json!({ "field_path": "Query", "service_id": "other" }),
            400,
            "wrong service_id, it is taken from the path",
        ),
        ("q", json!({ "field_path": "Query", "other": 1 }), 400, "other"),
    ] {
        refused(put(&format!("{place}/{path}"), &body), status, says);
    }
    let patch = |body: &Value| gateway.ask("PATCH", &format!("{place}/p"), &body.to_string());
    refused(patch(&json!({ "service_id": "other" })), 400, "service_id can not be patched");
    assert_eq!(patch(&json!({ "mul_value": 2 })).0, 200);
    assert_eq!(charge(), 39);
    let posted = gateway.ask("POST", place, &json!({ "field_path": "Product.id", "add_value": 5 }).to_string());
    assert_eq!((posted.0, charge()), (201, 111));
    let listed = gateway.ask("GET", place, "").1;
    assert_eq!(listed["total"], 2, "{listed}");
    assert_eq!(gateway.ask("GET", "services", "").1["total"], 1, "weights are no services");
    let all = gateway.ask("GET", &format!("{place}/p"), "").1;
    assert_eq!(all["key"], "/apisix/services/shop/graphql_cost_decorations/p");
    let schema = gateway.ask("GET", "schema/graphql_cost_decoration", "").1;
    assert_eq!(schema["properties"]["mul_value"]["minimum"], 0.0, "{schema}");
    // A service goes with its weights.
    assert_eq!(gateway.ask("DELETE", "routes/g", "").0, 200);
    assert_eq!(gateway.ask("DELETE", "services/shop", "").0, 200);
    assert_eq!((put("services/shop", &service).0, put("routes/g", &route).0), (201, 201));
    assert_eq!(charge(), 5);
}

#[test]
fn a_schema_that_is_not_told_refuses_operations() {
    let origin = Origin::answering(|_| Answer::status(500, "no"));
    let (shop_process, weights) = (Shop::start(), [json!({ "field_path": "Query.products", "add_value": 5 })]);
    let strategies = [
        ("silent", json!({ "cost_strategy": "complexity" })),
        (
            "told",
            json!({
                "cost_strategy": "complexity", "introspection_endpoint": format!("http://{}/schema?a=b", shop_process.node),
                "introspection_headers": { "X-Token": "secret" },
            }),
        ),
    ];
    let gateway = Start::new(shop(&origin.node(), &strategies, &weights)).workers(1).start();
    let query = json!({ "query": "{ products { __typename } }" });
    for _ in 0..3 {
        let refused = operate(&gateway, "/silent", &query);
        assert!(refused.status == 400 && refused.text().contains("failed to introspect"), "{refused:?}");
    }
    assert_eq!(origin.requests().len(), 1, "a failure is remembered");
    gateway.logged("the upstream tells no schema of GraphQL");
    // A place of its own answers, whatever the upstream does.
    let answered = operate(&gateway, "/told", &query);
    assert_eq!((answered.status, cost(&answered)), (500, 1 + 5 + 1 + 1));
    let asked = wait_until("the question", LIMIT, || Some(shop_process.asked()).filter(|asked| !asked.is_empty()));
    assert_eq!(asked, [format!("/schema?a=b {} secret", shop_process.node)]);
}
