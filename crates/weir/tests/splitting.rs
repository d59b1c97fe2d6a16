//! Shares of the requests that go to other upstreams.

use std::thread;

use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Refusing, Reload, Start};

/// A route to the first origin, and shares of its requests by these weights.
fn splitting(origins: &[Origin], weights: &[u32], fields: &Value) -> Value {
    let upstream = |origin: &Origin| json!({ "nodes": { (origin.node()): 1 } });
    let own = json!({ "weight": weights[0] });
    let named = json!({ "upstream_id": "named", "weight": weights[1] });
    let inline = json!({ "upstream": upstream(&origins[2]), "weight": weights[2] });
    let mut named_upstream = upstream(&origins[1]);
    named_upstream["id"] = json!("named");
    let mut route = json!({
        "id": "all", "uri": "/*", "upstream": upstream(&origins[0]),
        "plugins": { "traffic-split": { "rules": [{ "weighted_upstreams": [own, named, inline] }] } },
    });
    route.as_object_mut().expect("a route").extend(fields.as_object().expect("fields").clone());
    json!({ "routes": [route], "upstreams": [named_upstream] })
}

fn counts(origins: &[Origin]) -> Vec<usize> {
    origins.iter().map(|origin| origin.requests().len()).collect()
}

#[test]
fn shares_are_exact_over_all_workers() {
    let origins = Origin::numbered(3);
    let gateway = Start::new(splitting(&origins, &[70, 25, 5], &json!({}))).workers(4).start();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = gateway.client();
                for _ in 0..50 {
                    assert_eq!(client.get("/").status, 200);
                }
            });
        }
    });
    assert_eq!(counts(&origins), [560, 200, 40]);
}

#[test]
fn shares_go_on_over_a_change_that_leaves_them_alone() {
    let origins = Origin::numbered(3);
    let config = |number: usize| splitting(&origins, &[14, 5, 1], &json!({ "desc": format!("change {number}") }));
    let gateway = Gateway::start(config(0));
    for number in 1..=20 {
        assert_eq!(gateway.get("/").status, 200);
        assert!(matches!(gateway.reload(config(number)), Reload::Applied));
    }
    assert_eq!(counts(&origins), [14, 5, 1]);
}

#[test]
fn the_routes_time_limits_and_the_chosen_upstreams_retries_hold() {
    let (own, silent, good) =
        (Origin::hello(), Origin::scripted(|connection| connection.await_close()), Origin::hello());
    let refusing = Refusing::bind();
    let chosen = |nodes: Value, read: f64| {
        json!({
            "id": "all", "uri": "/*", "upstream": { "nodes": { (own.node()): 1 } },
            "timeout": { "connect": 20, "send": 20, "read": read },
            "plugins": { "traffic-split": { "rules": [{ "weighted_upstreams": [{ "upstream": { "nodes": nodes } }] }] } },
        })
    };
    let both = json!({ (refusing.node()): 1, (good.node()): 1 });
    let gateway = Gateway::start(json!({ "routes": [chosen(both, 20.0)] }));
    for _ in 0..4 {
        assert_eq!(gateway.get("/").status, 200, "the other node of the chosen upstream answers");
    }
    assert_eq!(good.requests().len(), 4);
    gateway.reload(json!({ "routes": [chosen(json!({ (silent.node()): 1 }), 0.3)] }));
    assert_eq!(gateway.get("/").status, 504, "after the route's time, not a minute");
    gateway.reload(json!({ "routes": [chosen(json!({}), 20.0)] }));
    assert_eq!(gateway.get("/").status, 503, "an upstream without nodes is not passed over");
    assert_eq!(own.requests().len(), 0);
}
