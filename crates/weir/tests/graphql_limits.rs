//! graphql-limit-count over several gateways.

use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Redis, Start, route_with};

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
