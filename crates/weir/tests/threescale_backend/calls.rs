//! Every error and refusal of calls, and the extensions.

use serde_json::{Value, json};

use super::{Site, call, element, report, send};
use crate::harness::Gateway;

/// Services of two providers: with user keys, with ids and keys, and with OpenID Connect.
fn services() -> Value {
    let metrics = json!([{ "name": "hits" }, { "name": "search", "parent": "hits" }]);
    let plan = |id: &str, value: u64| json!({ "id": id, "name": "A & B", "limits": [{ "metric": "hits", "period": "eternity", "value": value }] });
    json!({ "services": [
        {
            "id": "1", "provider_key": "provider", "service_tokens": ["token"], "metrics": metrics,
            "plans": [plan("some", 2), plan("none", 0)],
            "applications": [
                { "id": "anna", "plan": "some", "user_keys": ["anna-key"] },
                { "id": "held", "plan": "some", "user_keys": ["held-key"], "state": "suspended" },
                { "id": "zero", "plan": "none", "user_keys": ["zero-key"] },
            ],
        },
        {
            "id": "2", "provider_key": "provider", "service_tokens": ["token2"], "metrics": metrics,
            "backend_version": "2", "referrer_filters_required": true, "plans": [plan("some", 2)],
            "applications": [
                { "id": "bert", "plan": "some", "keys": ["one", "two"] },
                { "id": "free", "plan": "some" },
                { "id": "site", "plan": "some", "referrer_filters": ["*.example.org", "example.net"] },
            ],
        },
        {
            "id": "3", "provider_key": "provider", "service_tokens": ["token3"], "metrics": metrics,
            "backend_version": "oauth", "plans": [plan("some", 2)],
            "applications": [{ "id": "carl", "keys": ["secret"], "redirect_url": "https://a.test/?x=1&y=2" }],
        },
        { "id": "4", "provider_key": "other", "service_tokens": ["token4"], "state": "suspended",
          "applications": [{ "id": "dora", "user_keys": ["dora-key"] }] },
        { "id": "5", "service_tokens": ["token5"] },
    ] })
}

/// Status, code and text of an error.
fn error(gateway: &Gateway, kind: &str, query: &str) -> (u16, String, String) {
    let answer = call(gateway, kind, query, "");
    told(answer.status, &answer.text())
}

fn told(status: u16, xml: &str) -> (u16, String, String) {
    let Some((_, rest)) = xml.split_once("<error code=\"") else { return (status, String::new(), xml.to_owned()) };
    let (code, rest) = rest.split_once("\">").expect("the end of the code");
    let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><error";
    assert!(xml.starts_with(head) && rest.ends_with("</error>"), "{xml}");
    (status, code.to_owned(), rest.trim_end_matches("</error>").to_owned())
}

#[test]
fn every_error_has_its_status_code_and_text() {
    let gateway = Site::new(&services()).start();
    let anna = "service_token=token&service_id=1&user_key=anna-key";
    let cases = [
        ("user_key=a", 403, "provider_key_or_service_token_required", "Provider key or service token are required"),
        (
            "service_token=&service_id=1",
            403,
            "provider_key_or_service_token_required",
            "Provider key or service token are required",
        ),
        ("service_token=token", 422, "service_id_missing", "Service ID is missing"),
        ("service_token=token&service_id=%20", 422, "service_id_missing", "Service ID is missing"),
        (
            "service_token=bad&service_id=1",
            403,
            "service_token_invalid",
            "service token \"bad\" or service id \"1\" is invalid",
        ),
        (
            "service_token=token&service_id=9",
            403,
            "service_token_invalid",
            "service token \"token\" or service id \"9\" is invalid",
        ),
        (
            "service_token=token2&service_id=1",
            403,
            "service_token_invalid",
            "service token \"token2\" or service id \"1\" is invalid",
        ),
        (
            "provider_key=bad",
            403,
            "provider_key_invalid_or_service_missing",
            "provider key \"bad\" invalid and/or service ID missing",
        ),
        ("provider_key=bad&service_id=1", 403, "provider_key_invalid", "provider key \"bad\" is invalid"),
        ("provider_key=provider&service_id=9", 403, "service_id_invalid", "service id \"9\" is invalid"),
        ("provider_key=provider&service_id=4", 403, "service_id_invalid", "service id \"4\" is invalid"),
        ("provider_key=provider&service_id=1", 403, "user_key_invalid", "user key is missing"),
        ("provider_key=provider&service_id=api-1&user_key=x", 403, "user_key_invalid", "user key \"x\" is invalid"),
        ("provider_key=provider&user_key=%3Cx%3E", 403, "user_key_invalid", "user key \"&lt;x&gt;\" is invalid"),
        ("service_token=token2&service_id=2", 404, "application_not_found", "application id is missing"),
        ("service_token=token2&service_id=2&user_key=x", 404, "application_not_found", "application id is missing"),
        (
            "service_token=token2&service_id=2&app_id=x",
            404,
            "application_not_found",
            "application with id=\"x\" was not found",
        ),
        (
            "service_token=token2&service_id=2&app_id=bert&user_key=x",
            403,
            "authentication_error",
            "either app_id or user_key is allowed, not both",
        ),
        ("ANNA&usage[nukes]=1", 404, "metric_invalid", "metric \"nukes\" is invalid"),
        ("ANNA&usage[hits]=tons!", 403, "usage_value_invalid", "usage value \"tons!\" for metric \"hits\" is invalid"),
        ("ANNA&usage[hits]=-1", 403, "usage_value_invalid", "usage value \"-1\" for metric \"hits\" is invalid"),
        ("ANNA&usage[hits]=", 403, "usage_value_invalid", "usage value for metric \"hits\" can not be empty"),
        ("ANNA&usage[hits]", 403, "usage_value_invalid", "usage value for metric \"hits\" can not be empty"),
        (
            "ANNA&user_id=u",
            400,
            "end_users_no_longer_supported",
            "End-users are no longer supported, do not specify the user_id parameter",
        ),
        ("ANNA&a=%ff", 422, "not_valid_data", "all data must be valid UTF8"),
        ("ANNA&a=%zz", 400, "bad_request", "Invalid query parameters: invalid %-encoding"),
        (
            "ANNA&usage[]=1&usage[hits]=1",
            400,
            "bad_request",
            "request contains syntax errors, should not be repeated without modification",
        ),
    ];
    for (query, status, code, text) in cases {
        let query = query.replace("ANNA", anna);
        for kind in ["authorize", "authrep"] {
            let expected = (status, code.to_owned(), text.to_owned());
            assert_eq!(error(&gateway, kind, &query), expected, "{kind} {query}");
        }
    }
    // No application at all is one error for OAuth, whatever the service identifies applications by.
    let expected = (404, "application_not_found".to_owned(), "application id is missing".to_owned());
    for kind in ["oauth_authorize", "oauth_authrep"] {
        assert_eq!(error(&gateway, kind, anna), expected, "{kind}");
    }
    // Usage that is none, and paths and methods that are not there.
    for (request, body, status) in [
        (format!("GET /transactions/authorize.xml?{anna}&usage=1"), "", 403),
        ("GET /transactions.xml".to_owned(), "", 404),
        ("POST /transactions/authorize.xml".to_owned(), "", 404),
        ("GET /transactions/authorize".to_owned(), "", 404),
        ("GET /".to_owned(), "", 404),
        ("DELETE /status".to_owned(), "", 404),
        ("GET /available".to_owned(), "", 404),
    ] {
        let answer = send(&gateway, &request, body);
        assert_eq!((answer.status, answer.text().as_str()), (status, ""), "{request}");
        assert_eq!(answer.field("content-type"), Some("application/vnd.3scale-v2.0+xml"), "{request}");
    }
}

#[test]
fn every_error_of_a_report_has_its_status_code_and_text() {
    let gateway = Site::new(&services()).start();
    let token = "service_token=token&service_id=1";
    let blank = ("transactions_is_blank", "transactions parameter is blank");
    let format = ("transactions_format_invalid", "transactions format is invalid");
    for (form, status, (code, text)) in [
        (String::new(), 403, ("provider_key_or_service_token_required", "Provider key or service token are required")),
        ("service_token=token&transactions[0][a]=1".into(), 422, ("service_id_missing", "Service ID is missing")),
        (
            "service_token=bad&service_id=1&transactions=".into(),
            403,
            ("service_token_invalid", "service token \"bad\" or service id \"1\" is invalid"),
        ),
        (
            "provider_key=bad&transactions[0][app_id]=a".into(),
            403,
            ("provider_key_invalid_or_service_missing", "provider key \"bad\" invalid and/or service ID missing"),
        ),
        (token.to_owned(), 400, blank),
        (format!("{token}&transactions="), 400, blank),
        (format!("{token}&transactions=a"), 400, format),
        (format!("{token}&transactions[]=a"), 400, format),
        (format!("{token}&transactions[0]=a"), 400, format),
        (
            format!("{token}&transactions[0]"),
            400,
            ("transactions_has_nil_transaction", "transactions has a nil transaction"),
        ),
        (
            format!("{token}&transactions[0][user_id]=u"),
            400,
            (
                "end_users_no_longer_supported",
                "End-users are no longer supported, do not specify the user_id parameter",
            ),
        ),
        (format!("{token}&transactions[0][app_id]=%ff"), 422, ("not_valid_data", "all data must be valid UTF8")),
        ("a=1%".into(), 400, ("bad_request", "Invalid query parameters: invalid %-encoding")),
    ] {
        let answer = report(&gateway, &form);
        assert_eq!(told(answer.status, &answer.text()), (status, code.to_owned(), text.to_owned()), "{form}");
    }
    for (media_type, code) in [
        ("text/plain", "content_type_invalid"),
        ("application/json; charset=utf-8", "content_type_invalid"),
        ("application/x-www-form-urlencoded; charset=UTF-8", "transactions_is_blank"),
        ("APPLICATION/X-WWW-FORM-URLENCODED", "transactions_is_blank"),
        ("", "transactions_is_blank"),
    ] {
        let answer = send(&gateway, &format!("POST /transactions.xml\nContent-Type: {media_type}"), token);
        let (status, found, text) = told(answer.status, &answer.text());
        assert_eq!((status, found.as_str()), (400, code), "{media_type}");
        let named = media_type.split(';').next().unwrap_or_default();
        assert!(code != "content_type_invalid" || text == format!("invalid Content-Type: {named}"), "{text}");
    }
    // Nothing of what was refused has counted.
    let form = format!("{token}&transactions[0][user_key]=anna-key&transactions[0][usage][hits]=1");
    let accepted = report(&gateway, &form);
    assert_eq!((accepted.status, accepted.text().as_str()), (202, ""));
    let part =
        |name: &str, value: &str| format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    let parts = [
        part("service_token", "token"),
        part("service_id", "1"),
        part("transactions[0][user_key]", "anna-key"),
        part("transactions[0][usage][hits]", "2"),
    ];
    let form = format!("{}--b--\r\n", parts.concat());
    let answer = send(&gateway, "POST /transactions.xml\nContent-Type: multipart/form-data; boundary=b", &form);
    assert_eq!(answer.status, 202, "{}", answer.text());
    let shown = call(&gateway, "authorize", &format!("{token}&user_key=anna-key"), "").text();
    assert_eq!(super::used(&shown, "hits", "eternity"), 3);
}

#[test]
fn refusals_name_their_reason() {
    let gateway = Site::new(&services()).start();
    let two = |rest: &str| format!("service_token=token2&service_id=2&app_id={rest}");
    let three = |rest: &str| format!("service_token=token3&service_id=3&app_id=carl{rest}");
    let authorized = ("", "");
    let cases = [
        ("authorize", "service_token=token&service_id=1&user_key=anna-key".to_owned(), authorized),
        ("authorize", "provider_key=provider&user_key=anna-key".to_owned(), authorized),
        (
            "authorize",
            "service_token=token&service_id=1&user_key=held-key&usage[hits]=9".to_owned(),
            ("application_not_active", "application is not active"),
        ),
        (
            "authrep",
            "service_token=token4&service_id=4&user_key=dora-key".to_owned(),
            ("service_not_active", "service is not active"),
        ),
        (
            "authrep",
            "service_token=token&service_id=1&user_key=zero-key&usage[search]=1".to_owned(),
            ("limits_exceeded", "usage limits are exceeded"),
        ),
        ("authrep", "service_token=token&service_id=1&user_key=zero-key".to_owned(), authorized),
        ("authorize", two("bert"), ("application_key_invalid", "application key is missing")),
        ("authorize", two("bert&app_key="), ("application_key_invalid", "application key is missing")),
        ("authorize", two("bert&app_key=six"), ("application_key_invalid", "application key \"six\" is invalid")),
        ("authorize", two("bert&app_key=two"), authorized),
        ("authorize", two("free"), authorized),
        ("authorize", two("free&app_key=any"), authorized),
        ("authorize", two("site"), ("referrer_not_allowed", "referrer is missing")),
        ("authorize", two("site&referrer=b.test"), ("referrer_not_allowed", "referrer \"b.test\" is not allowed")),
        ("authorize", two("site&referrer=a.example.org"), authorized),
        ("authorize", two("site&referrer=example.net"), authorized),
        ("authorize", two("site&referrer=*"), authorized),
        ("oauth_authorize", two("free"), ("oauth_not_enabled", "oauth is not enabled")),
        ("oauth_authorize", three(""), authorized),
        ("oauth_authrep", three("&app_key=secret"), authorized),
        ("oauth_authorize", three("&app_key="), ("application_key_invalid", "application key is missing")),
        ("oauth_authorize", three("&app_key=x"), ("application_key_invalid", "application key \"x\" is invalid")),
        ("authorize", three(""), authorized),
        ("authorize", three("&app_key=x"), ("application_key_invalid", "application key \"x\" is invalid")),
        ("oauth_authorize", three("&redirect_uri=https://a.test/?x=1%26y=2"), authorized),
        ("oauth_authorize", three("&redirect_uri="), authorized),
        (
            "oauth_authorize",
            three("&redirect_uri=https://b.test"),
            ("redirect_uri_invalid", "redirect_uri \"https://b.test\" is invalid"),
        ),
        (
            "oauth_authorize",
            three("&redirect_url=https://b.test"),
            ("redirect_url_invalid", "redirect_url \"https://b.test\" is invalid"),
        ),
    ];
    for (kind, query, (code, text)) in cases {
        let answer = call(&gateway, kind, &query, "rejection_reason_header=1");
        let reason = element(&answer.text(), "reason").unwrap_or_default().to_owned();
        let header = answer.field("3scale-rejection-reason").unwrap_or_default();
        let status = if code.is_empty() { 200 } else { 409 };
        assert_eq!((answer.status, header, reason.as_str()), (status, code, text), "{kind} {query}");
        let is_authorized = element(&answer.text(), "authorized") == Some("true");
        assert_eq!(is_authorized, code.is_empty(), "{kind} {query}");
        assert!(call(&gateway, kind, &query, "").field("3scale-rejection-reason").is_none());
    }
}

#[test]
fn documents_are_those_of_3scale() {
    let gateway = Site::new(&services()).start();
    let answer = call(&gateway, "authrep", "service_token=token&service_id=1&user_key=anna-key&usage[search]=1", "");
    assert_eq!(
        answer.text(),
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><status><authorized>true</authorized><plan>A &amp; B</plan>\
         <usage_reports><usage_report metric=\"hits\" period=\"eternity\"><max_value>2</max_value>\
         <current_value>1</current_value></usage_report></usage_reports></status>"
    );
    for (field, value) in [
        ("content-type", "application/vnd.3scale-v2.0+xml"),
        ("access-control-allow-origin", "*"),
        ("access-control-expose-headers", "ETag, Link, 3scale-rejection-reason"),
    ] {
        assert_eq!(answer.field(field), Some(value), "{field}");
    }
    let oauth = |query: &str| {
        call(&gateway, "oauth_authorize", &format!("service_token=token3&service_id=3&app_id=carl{query}"), "").text()
    };
    let expected = |name: &str| {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><status><authorized>true</authorized><application><id>carl</id>\
             <key>secret</key><{name}>https://a.test/?x=1&amp;y=2</{name}></application><plan></plan></status>"
        )
    };
    assert_eq!(oauth(""), expected("redirect_url"));
    assert_eq!(oauth("&redirect_uri=https://a.test/?x=1%26y=2"), expected("redirect_uri"));

    let preflight = send(&gateway, "OPTIONS /transactions/authrep.xml", "");
    assert_eq!((preflight.status, preflight.field("access-control-max-age")), (204, Some("86400")));
    assert!(preflight.field("access-control-allow-headers").is_some_and(|names| names.contains("3scale-options")));
    assert_eq!(send(&gateway, "GET /check.txt", "").text(), "ok");
    let status = send(&gateway, "GET /status", "");
    assert_eq!((status.status, &status.json()["status"]), (200, &json!("ok")));
    assert_eq!(send(&gateway, "HEAD /available", "").status, 200);
    let head =
        send(&gateway, "HEAD /transactions/authorize.xml?service_token=token&service_id=1&user_key=held-key", "");
    assert_eq!((head.status, head.text().as_str()), (409, ""));
}

#[test]
fn extensions_change_what_is_answered() {
    let gateway = Site::new(&services()).start();
    let anna = "service_token=token&service_id=1&user_key=anna-key";
    for (kind, query, options, status, has_body) in [
        ("authorize", anna.to_owned(), "no_body=1", 200, false),
        ("authorize", anna.to_owned(), "no_body=true", 200, false),
        ("authorize", anna.to_owned(), "no_body=0", 200, true),
        ("authorize", anna.to_owned(), "no_body=false", 200, true),
        ("authrep", format!("{anna}&no_body=1"), "", 200, false),
        ("authrep", format!("{anna}&no_body=1"), "no_body=0", 200, true),
        ("authorize", format!("{anna}&usage[hits]=3"), "no_body=1", 409, false),
        ("authorize", format!("{anna}&usage[nukes]=3"), "no_body=1", 404, false),
        ("authorize", "provider_key=bad".to_owned(), "no_body=1", 403, false),
        ("authorize", format!("{anna}&usage[hits]=3"), "%zz", 409, true),
    ] {
        let answer = call(&gateway, kind, &query, options);
        assert_eq!((answer.status, !answer.body.is_empty()), (status, has_body), "{query} {options}");
    }
    let keys = |query: &str| call(&gateway, "authorize", query, "list_app_keys=1").text();
    let bert = keys("service_token=token2&service_id=2&app_id=bert&app_key=one");
    assert!(bert.contains("<app_keys app=\"bert\" svc=\"2\"><key id=\"one\"/><key id=\"two\"/></app_keys>"), "{bert}");
    let free = keys("service_token=token2&service_id=2&app_id=free");
    assert!(free.contains("<app_keys app=\"free\" svc=\"2\"></app_keys>"), "{free}");
    let shown = call(&gateway, "authorize", anna, "hierarchy=1").text();
    assert!(shown.contains("<hierarchy><metric name=\"hits\" children=\"search\"/></hierarchy>"), "{shown}");
    assert!(!call(&gateway, "authorize", anna, "").text().contains("<hierarchy>"));
}
