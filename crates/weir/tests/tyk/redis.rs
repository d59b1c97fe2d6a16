//! Sessions and quotas in a real Redis, as a Tyk gateway beside has them.

use serde_json::{Value, json};

use super::{Site, ask, error, key, keyed, right, send, told};
use crate::harness::{Gateway, LIMIT, Redis, Start, wait_until};

/// A site whose `tyk.conf` names a Redis, with further fields.
fn start(site: &Site, redis: &Redis, more: &Value) -> Gateway {
    let mut conf = json!({
        "storage": {"type": "redis", "host": "127.0.0.1", "port": redis.port, "optimisation_max_idle": 2000},
        "optimisations_use_async_session_write": true,
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        conf[name] = value.clone();
    }
    Start::at(&site.conf(conf)).start()
}

fn status(gateway: &Gateway, key: &str) -> u16 {
    send(gateway, &format!("GET /at/\nAuthorization: {key}")).status
}

#[test]
fn sessions_have_the_keys_and_bytes_of_tyks() {
    let (site, redis) = (Site::new(), Redis::start());
    site.api("at", keyed("at"));
    let gateway = start(&site, &redis, &json!({}));
    let session = right(
        "at",
        json!({"rate": 50, "per": 5, "quota_max": 3, "quota_renewal_rate": 30, "meta_data": {"m": "1"}, "tags": ["t1"],
            "alias": "al", "is_inactive": false, "quota_remaining": 0}),
    );
    let (_, made) = ask(&gateway, "POST", "/tyk/keys/create", &session);
    let (own, hash) = (made["key"].as_str().expect("a key"), made["key_hash"].as_str().expect("a hash"));
    let stored = redis.cli(&["GET", &format!("apikey-{hash}")]);
    let read: Value = serde_json::from_str(&stored).expect("JSON");
    let (created, updated) = (read["date_created"].as_str().expect("a time"), read["last_updated"].as_str());
    let updated: i64 = updated.expect("a time").parse().expect("seconds");
    // As a Tyk of version 5.14 was seen to write it.
    let expected = format!(
        "{{\"rate\":50,\"per\":5,\"date_created\":\"{created}\",\"quota_max\":3,\"quota_renews\":{},\"quota_renewal_rate\":30,\
         \"access_rights\":{{\"at\":{{\"api_name\":\"at\",\"api_id\":\"at\",\"versions\":[\"Default\"]}}}},\"org_id\":\"o1\",\
         \"meta_data\":{{\"m\":\"1\"}},\"tags\":[\"t1\"],\"alias\":\"al\",\"last_updated\":\"{updated}\"}}",
        updated + 30
    );
    assert_eq!(stored, expected);
    assert_eq!(redis.cli(&["TTL", &format!("apikey-{hash}")]), "-1");
    let quota = format!("quota-{hash}");
    let first = send(&gateway, &format!("GET /at/\nAuthorization: {own}"));
    assert_eq!((first.field("X-Ratelimit-Limit"), first.field("X-Ratelimit-Remaining")), (Some("3"), Some("2")));
    assert_eq!([(); 4].map(|()| status(&gateway, own)), [200, 200, 403, 403]);
    assert_eq!(told(&send(&gateway, &format!("GET /at/\nAuthorization: {own}"))), (403, error("Quota exceeded")));
    assert_eq!(redis.cli(&["GET", &quota]), "6", "refused requests count");
    let left: i64 = redis.cli(&["TTL", &quota]).parse().expect("seconds");
    assert!((20..=30).contains(&left), "{left}");
    let path = format!("/tyk/keys/{own}");
    assert_eq!(ask(&gateway, "GET", &path, &Value::Null).1["quota_remaining"], 0);
    assert_eq!(ask(&gateway, "PUT", &format!("{path}?suppress_reset=1"), &session).0, 200);
    assert_eq!(status(&gateway, own), 403, "the quota goes on");
    assert_eq!(ask(&gateway, "PUT", &path, &session).0, 200);
    assert_eq!((redis.cli(&["EXISTS", &quota]).as_str(), status(&gateway, own)), ("0", 200), "the quota begins anew");
    assert_eq!(ask(&gateway, "GET", "/tyk/keys", &Value::Null), (200, json!({"keys": [hash]})));
    assert_eq!(ask(&gateway, "GET", "/tyk/keys?api_id=none", &Value::Null), (200, json!({"keys": []})));
    assert_eq!(ask(&gateway, "DELETE", &path, &Value::Null).1["action"], "deleted");
    assert_eq!((redis.cli(&["EXISTS", &format!("apikey-{hash}")]).as_str(), status(&gateway, own)), ("0", 403));
}

#[test]
fn keys_that_tyk_has_made_go_on_working() {
    let (site, redis) = (Site::new(), Redis::start());
    site.api("at", keyed("at"));
    // As Tyk 5.14 and Tyk 1.7 write them. The names are hashes of the key, and of the organisation with the key.
    let new = json!({
        "rate": 50, "per": 5, "date_created": "2026-11-23T09:14:25.608942347Z", "quota_max": 2,
        "quota_renews": 1_795_425_295, "quota_renewal_rate": 60,
        "access_rights": {"at": {"api_name": "at", "api_id": "at", "versions": ["Default"], "limit": {"quota_max": 1, "quota_renewal_rate": 60}, "allowance_scope": "at"}},
        "org_id": "o1", "last_updated": "1795425265"
    });
    let old = json!({
        "allowance": 1000, "rate": 1000, "per": 1, "expires": 0, "quota_max": -1, "quota_renews": 1_406_121_006,
        "quota_remaining": 0, "quota_renewal_rate": 60, "org_id": "o1", "oauth_client_id": "",
        "access_rights": {"at": {"api_name": "at", "api_id": "at", "versions": ["Default"], "allowed_urls": null}},
        "basic_auth_data": {"password": "", "hash_type": ""}, "jwt_data": {"secret": ""}, "hmac_enabled": false,
        "hmac_string": "", "is_inactive": false, "apply_policy_id": "", "data_expires": 0, "monitor": {"trigger_limits": null},
        "meta_data": null, "tags": null
    });
    // MurmurHash3 of "hello" with 32 bits.
    redis.cli(&["SET", "apikey-248bfa47", &old.to_string()]);
    let gateway = start(&site, &redis, &json!({}));
    assert_eq!(status(&gateway, "hello"), 200);
    assert_eq!([status(&gateway, "hallo"), status(&gateway, "248bfa47")], [403, 403]);
    // A key with murmur64 in itself.
    let (_, made) = ask(&gateway, "POST", "/tyk/keys/create", &right("at", json!({})));
    let (own, hash) = (made["key"].as_str().expect("a key"), made["key_hash"].as_str().expect("a hash"));
    redis.cli(&["SET", &format!("apikey-{hash}"), &new.to_string()]);
    assert_eq!([(); 2].map(|()| status(&gateway, own)), [200, 403], "the limit of the right");
    assert_eq!(redis.cli(&["GET", &format!("quota-at-{hash}")]), "2");
    redis.cli(&["SET", &format!("apikey-{hash}"), "{no JSON"]);
    let (code, answer) = ask(&gateway, "GET", &format!("/tyk/keys/{own}"), &Value::Null);
    assert!(code == 500 && answer["message"].as_str().is_some_and(|text| text.contains("is no JSON")), "{answer}");
}

#[test]
fn gateways_share_sessions_and_quotas() {
    let (site, redis) = (Site::new(), Redis::start());
    site.api("at", keyed("at"));
    let uncached = json!({"local_session_cache": {"disable_cached_session_state": true}});
    let gateways = [start(&site, &redis, &uncached), start(&site, &redis, &uncached)];
    let [one, other] = &gateways;
    let own = key(one, &right("at", json!({"quota_max": 3, "quota_renewal_rate": 3600})));
    assert_eq!([status(one, &own), status(other, &own), status(one, &own)], [200; 3]);
    assert_eq!([status(one, &own), status(other, &own)], [403, 403]);
    // A user, and a change of the other gateway.
    let path = format!("/tyk/keys/{own}");
    assert_eq!(ask(other, "PUT", &path, &right("at", json!({"is_inactive": true}))).0, 200);
    let refused = send(one, &format!("GET /at/\nAuthorization: {own}"));
    assert_eq!(told(&refused), (403, error("Key is inactive, please renew")));
}

#[test]
fn without_redis_keys_are_refused_and_health_says_so() {
    let (site, mut redis) = (Site::new(), Redis::start());
    site.api("at", keyed("at"));
    site.api("open", super::keyless("open", "/open/", "/"));
    let uncached = json!({"local_session_cache": {"disable_cached_session_state": true}});
    let gateway = start(&site, &redis, &uncached);
    let own = key(&gateway, &right("at", json!({})));
    let hello = |gateway: &Gateway| send(gateway, "GET /hello").json();
    assert_eq!((status(&gateway, &own), &hello(&gateway)["details"]["redis"]["status"]), (200, &json!("pass")));
    assert_eq!(told(&send(&gateway, "GET /ready")), (200, "Tyk GW Ready".to_owned()));
    redis.kill();
    let refused = send(&gateway, &format!("GET /at/\nAuthorization: {own}"));
    assert_eq!(told(&refused), (403, error("Access to this API has been disallowed")));
    assert_eq!(send(&gateway, "GET /open/").status, 200);
    let health = send(&gateway, "GET /hello");
    let away = "storage: Redis is either down or was not configured";
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("fail")), "{health:?}");
    assert_eq!(health.json()["details"]["redis"]["output"], away);
    let text = "{\"status\":\"error\",\"message\":\"Redis connection not available\"}\n";
    assert_eq!(told(&send(&gateway, "GET /ready")), (503, text.to_owned()));
    let (code, answer) = ask(&gateway, "POST", "/tyk/keys/create", &right("at", json!({})));
    assert_eq!((code, &answer["message"]), (500, &json!(format!("Failed to create key - {away}"))));
    redis.restart();
    wait_until("the gateway to be ready", LIMIT, || (send(&gateway, "GET /ready").status == 200).then_some(()));
    let own = key(&gateway, &right("at", json!({})));
    assert_eq!(status(&gateway, &own), 200);
}

#[test]
fn sessions_are_used_for_a_while_without_redis() {
    let (site, mut redis) = (Site::new(), Redis::start());
    site.api("at", keyed("at"));
    let gateway = start(&site, &redis, &json!({"local_session_cache": {"cached_session_timeout": 3600}}));
    let own = key(&gateway, &right("at", json!({})));
    let limited = key(&gateway, &right("at", json!({"quota_max": 9, "quota_renewal_rate": 60})));
    assert_eq!([status(&gateway, &own), status(&gateway, &limited)], [200, 200]);
    redis.kill();
    assert_eq!([status(&gateway, &own), status(&gateway, &limited)], [200, 403], "a quota cannot be counted");
}

#[test]
fn sessions_stay_for_as_long_as_apis_and_keys_say() {
    let site = Site::new();
    let redis = Redis::start();
    site.api("never", keyed("never"));
    let mut hour = keyed("hour");
    hour["session_lifetime"] = 3600.into();
    site.api("hour", hour);
    let mut waits = keyed("waits");
    (waits["session_lifetime"], waits["session_lifetime_respects_key_expiration"]) = (60.into(), true.into());
    site.api("waits", waits);
    site.api(
        "oas",
        json!({"openapi": "3.0.3", "info": {"title": "o", "version": "1"}, "paths": {}, "x-tyk-api-gateway": {
            "info": {"name": "oas", "id": "oas", "orgId": "o1", "state": {"active": true}}, "upstream": {"url": "http://ORIGIN/"},
            "server": {"listenPath": {"value": "/oas/", "strip": true}, "authentication": {
                "enabled": true, "customKeyLifetime": {"enabled": true, "value": "30m"},
                "securitySchemes": {"authToken": {"enabled": true, "header": {"enabled": true, "name": "Authorization"}}}}}}}),
    );
    let gateway = start(&site, &redis, &json!({}));
    let in_a_day = jiff::Timestamp::now().as_second() + 86_400;
    let lifetime = |gateway: &Gateway, api: &str, more: Value| {
        let (status, made) = ask(gateway, "POST", "/tyk/keys/create", &right(api, more));
        assert_eq!(status, 200, "{made}");
        let hash = made["key_hash"].as_str().expect("a hash");
        redis.cli(&["TTL", &format!("apikey-{hash}")]).parse::<i64>().expect("seconds")
    };
    for (api, more, expected) in [
        ("never", json!({}), -1),
        ("never", json!({"session_lifetime": 120}), 120),
        ("hour", json!({}), 3600),
        ("hour", json!({"session_lifetime": 120}), 120),
        ("oas", json!({}), 1800),
        ("waits", json!({}), -1),
        ("waits", json!({"expires": in_a_day}), 86_400),
        ("never", json!({"expires": in_a_day, "post_expiry_action": "delete"}), 86_400),
        ("hour", json!({"expires": in_a_day, "post_expiry_action": "retain", "post_expiry_grace_period": 100}), 86_500),
        ("hour", json!({"expires": in_a_day, "post_expiry_action": "retain", "post_expiry_grace_period": -1}), -1),
    ] {
        let left = lifetime(&gateway, api, more.clone());
        assert!((expected - 30..=expected).contains(&left), "{api} {more}: {left}");
    }
    let global = start(&site, &redis, &json!({"force_global_session_lifetime": true, "global_session_lifetime": 77}));
    assert!((70..=77).contains(&lifetime(&global, "hour", json!({}))));
}
