//! Versions that are APIs of their own, in both forms of definitions, and APIs that are internal.

use serde_json::{Value, json};

use super::{Site, error, key, keyed, keyless, right, send, told};
use crate::harness::{Gateway, Start, weir};

/// A base API with the version v2, which is internal and needs a key.
fn write(site: &Site, location: &str, more: Value) {
    let mut base = keyless("base", "/base/", "/one");
    let definition = json!({
        "enabled": true, "name": "v1", "default": "self", "location": location, "key": "X-Version",
        "strip_versioning_data": true, "versions": {"v2": "second", "v3": "gone"},
    });
    base["version_definition"] = definition;
    crate::loggers::extend(&mut base["version_definition"], more);
    site.api("base", base);
    let mut second = keyed("second");
    (second["proxy"]["target_url"], second["internal"]) = ("http://ORIGIN/two".into(), true.into());
    site.api("second", second);
}

/// A request, and the target of its upstream or its refusal.
type Case<'c> = (String, Result<&'c str, (u16, String)>);

fn asked(site: &Site, gateway: &Gateway, requests: &[Case<'_>]) {
    for (request, expected) in requests {
        let response = send(gateway, request);
        match expected {
            Ok(target) => {
                assert_eq!((response.status, site.last_target().as_str()), (200, *target), "{request}: {response:?}");
            }
            Err(refusal) => assert_eq!(&told(&response), refusal, "{request}"),
        }
    }
}

#[test]
fn a_version_is_an_api_of_its_own() {
    let unknown = || Err((404, error("This API version does not seem to exist")));
    let unnamed = || Err((403, error("Version information not found")));
    let keyless = || Err((401, error("Authorization field missing")));
    let site = Site::new();
    write(&site, "header", json!({}));
    let gateway = site.start();
    let own = key(&gateway, &right("second", json!({})));
    let with = |version: &str| format!("GET /base/x?a=1\nX-Version: {version}\nAuthorization: {own}");
    asked(
        &site,
        &gateway,
        &[
            ("GET /base/x".to_owned(), Ok("/one/x")),
            ("GET /base/x\nX-Version: v1".to_owned(), Ok("/one/x")),
            (with("v2"), Ok("/two/x?a=1")),
            ("GET /base/x\nX-Version: v2".to_owned(), keyless()),
            (with("v3"), unknown()),
            (with("v9"), unknown()),
            ("GET /second/x".to_owned(), Err((404, "Not Found".to_owned()))),
        ],
    );
    assert_eq!(send(&gateway, &with("v2")).status, 200);
    assert_eq!(site.last_field("X-Version"), None, "it is taken out");
    // Of the path, with a default that is another API, and back to it.
    let site = Site::new();
    write(&site, "url", json!({"default": "v2", "fallback_to_default": true, "url_versioning_pattern": "^v[0-9]+$"}));
    let gateway = site.start();
    let own = key(&gateway, &right("second", json!({})));
    let with = |path: &str| format!("GET {path}\nAuthorization: {own}");
    asked(
        &site,
        &gateway,
        &[
            ("GET /base/v1/x".to_owned(), Ok("/one/x")),
            (with("/base/v2/x"), Ok("/two/x")),
            (with("/base/v9/x"), Ok("/two/x")),
            (with("/base/orders/1"), Ok("/two/orders/1")),
            ("GET /base/orders/1".to_owned(), keyless()),
        ],
    );
    // Without a default.
    let site = Site::new();
    write(&site, "url-param", json!({"default": "", "key": "version", "strip_versioning_data": false}));
    let gateway = site.start();
    let own = key(&gateway, &right("second", json!({})));
    asked(
        &site,
        &gateway,
        &[
            ("GET /base/x?version=v1".to_owned(), Ok("/one/x?version=v1")),
            (format!("GET /base/x?version=v2\nAuthorization: {own}"), Ok("/two/x?version=v2")),
            ("GET /base/x".to_owned(), unnamed()),
            ("GET /base/x?version=v9".to_owned(), unknown()),
        ],
    );
}

#[test]
fn definitions_in_the_oas_form_have_versions_too() {
    let site = Site::new();
    let oas = |id: &str, listen: &str, more: Value| {
        let mut info = json!({"name": id, "id": id, "orgId": "o1", "state": {"active": true}});
        crate::loggers::extend(&mut info, more);
        json!({
            "openapi": "3.0.3", "info": {"title": id, "version": "1"}, "paths": {},
            "x-tyk-api-gateway": {"info": info, "upstream": {"url": format!("http://ORIGIN/{id}")},
                "server": {"listenPath": {"value": listen, "strip": true}}},
        })
    };
    let versioning = json!({"versioning": {"enabled": true, "name": "v1", "default": "self", "location": "header", "key": "X-Version",
        "versions": [{"name": "v2", "id": "two"}]}});
    site.api("one", oas("one", "/a/", versioning));
    site.api("two", oas("two", "/a-v2/", json!({"state": {"active": true, "internal": true}})));
    let gateway = Start::at(&site.apps()).start();
    asked(
        &site,
        &gateway,
        &[
            ("GET /a/x".to_owned(), Ok("/one/x")),
            ("GET /a/x\nX-Version: v2".to_owned(), Ok("/two/x")),
            ("GET /a-v2/x".to_owned(), Err((404, "Not Found".to_owned()))),
        ],
    );
}

#[test]
fn what_leads_nowhere_is_told() {
    let site = Site::new();
    write(&site, "header", json!({"default": "none"}));
    let mut alone = keyless("alone", "/alone/", "/");
    alone["internal"] = true.into();
    site.api("alone", alone);
    let (status, out, err) = weir(&["check", site.apps().to_str().expect("a path")]);
    let text = out + &err;
    assert_eq!(status, 0, "{text}");
    for expected in [
        "v3: no API has the id 'gone'",
        "no version has the name 'none'",
        "alone.internal: the API is no version of another one",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    write(&site, "cookie", json!({}));
    let (status, out, err) = weir(&["check", site.apps().to_str().expect("a path")]);
    assert!(status != 0 && (out + &err).contains("expected one of: header, url-param, url; found 'cookie'"));
}
