//! Logins at Casdoor, with a peer that answers as it does: of Casdoor itself there is no package.

use serde_json::{Value, json};

use crate::harness::{Answer, Connection, Gateway, Origin, Reload, Response};

/// Casdoor's endpoint for tokens, which answers by the code.
fn casdoor() -> Origin {
    Origin::answering(|request| {
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/api/login/oauth/access_token"));
        let form = String::from_utf8_lossy(&request.body).into_owned();
        assert!(form.ends_with("&grant_type=authorization_code&client_id=id%201&client_secret=s%26"), "{form}");
        match form.split('&').next().expect("a code") {
            "code=good" => Answer::ok("{\"access_token\":\"t\",\"expires_in\":60}"),
            "code=short" => Answer::ok("{\"access_token\":\"t\",\"expires_in\":1}"),
            "code=old" => Answer::ok("{\"access_token\":\"t\",\"expires_in\":0}"),
            "code=none" => Answer::ok("{\"error\":\"invalid_grant\"}"),
            "code=page" => Answer::ok("<html>"),
            _ => Answer::status(500, "{\"access_token\":\"t\",\"expires_in\":60}"),
        }
    })
}

fn rules(origin: &Origin, casdoor: &str, more: Value) -> Value {
    let mut conf = json!({ "endpoint_addr": format!("http://{casdoor}"), "client_id": "id 1", "client_secret": "s&",
                           "callback_url": "http://a.test/back" });
    crate::loggers::extend(&mut conf, more);
    json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": { "authz-casdoor": conf } }] })
}

fn ask(gateway: &Gateway, target: &str, cookies: &str) -> Response {
    gateway.client().request(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\nCookie: {cookies}\r\n\r\n"))
}

/// Name and value of each cookie that an answer sets.
fn cookies(response: &Response) -> Vec<String> {
    response.fields.all("set-cookie").iter().map(|line| line.split(';').next().expect("a pair").to_owned()).collect()
}

/// The state and the cookie of a login that begins with this target.
fn begin(gateway: &Gateway, target: &str) -> (String, String) {
    let response = ask(gateway, target, "");
    assert_eq!(response.status, 302);
    let location = response.field("location").expect("a place");
    let state = location.split("state=").nth(1).expect("a state").split('&').next().expect("a state");
    (state.to_owned(), cookies(&response).remove(0))
}

#[test]
fn users_log_in() {
    let (origin, casdoor) = (Origin::hello(), casdoor());
    let gateway = Gateway::start(rules(&origin, &casdoor.node(), json!({})));
    let response = ask(&gateway, "/x?a=1", "");
    let (location, line) =
        (response.field("location").expect("a place"), response.field("set-cookie").expect("a cookie"));
    let begins = format!("http://{}/login/oauth/authorize?response_type=code&scope=read&state=", casdoor.node());
    assert!(
        location.starts_with(&begins)
            && location.ends_with("&client_id=id%201&redirect_uri=http%3A%2F%2Fa.test%2Fback"),
        "{location}"
    );
    assert!(line.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=600"), "{line}");
    // Two logins at once, each with its own state.
    let ((state, login), (other_state, other_login)) = (begin(&gateway, "/x?a=1"), begin(&gateway, "/other"));
    assert_ne!(state, other_state);
    for (code, state, login, status) in [
        ("good", &state, &other_login, 400),
        ("good", &other_state, &login, 400),
        ("good", &state, &String::new(), 400),
        ("old", &state, &login, 503),
        ("none", &state, &login, 503),
        ("page", &state, &login, 503),
        ("broken", &state, &login, 503),
    ] {
        let response = ask(&gateway, &format!("/back?code={code}&state={state}"), login);
        assert_eq!((response.status, response.fields.all("set-cookie").len()), (status, 0), "{code}");
    }
    let response = ask(&gateway, &format!("/back?code=good&state={state}"), &login);
    assert_eq!((response.status, response.field("location")), (302, Some("/x?a=1")));
    let set = cookies(&response);
    let (session, ended) = (&set[0], &set[1]);
    assert!(ended.ends_with('=') && login.starts_with(ended.as_str()), "the login is over: {set:?}");
    assert_eq!(origin.requests().len(), 0);
    assert_eq!(ask(&gateway, "/x?a=1", session).status, 200);
    // A session is none of another client, of another secret, nor is a login one.
    let (name, value) = session.split_once('=').expect("a name and a value");
    let changed = format!("{name}={}{}", if value.starts_with('A') { "B" } else { "A" }, &value[1..]);
    let as_login = format!("{name}={}", login.split_once('=').expect("a value").1);
    for cookie in [&changed, &as_login] {
        assert_eq!(ask(&gateway, "/x", cookie).status, 302, "{cookie}");
    }
    for more in [json!({ "client_id": "id 2" }), json!({ "client_secret": "other" })] {
        assert_eq!(gateway.reload(rules(&origin, &casdoor.node(), more)), Reload::Applied);
        let response = ask(&gateway, "/x", session);
        assert_eq!(response.status, 302);
        let renamed = format!("{}={value}", cookies(&response)[0].get(..name.len()).expect("a name"));
        assert_eq!(ask(&gateway, "/x", &renamed).status, 302, "under the name of the other client");
    }
    // As long as the token, and for any gateway of the configuration.
    let gateway = Gateway::start(rules(&origin, &casdoor.node(), json!({})));
    assert_eq!(ask(&gateway, "/x", session).status, 200);
    let (state, login) = begin(&gateway, "//evil.test/x");
    let response = ask(&gateway, &format!("/back?code=short&state={state}"), &login);
    let target = response.field("location").expect("a place");
    assert!(target.starts_with('/') && !target.starts_with("//"), "{target}");
    let session = cookies(&response).remove(0);
    crate::harness::wait_until("the session to end", crate::harness::LIMIT, || {
        (ask(&gateway, "/x", &session).status == 302).then_some(())
    });
    // Over HTTPS cookies stay there.
    assert_eq!(
        gateway.reload(rules(&origin, &casdoor.node(), json!({ "callback_url": "https://a.test/back" }))),
        Reload::Applied
    );
    assert!(ask(&gateway, "/x", "").field("set-cookie").is_some_and(|line| line.ends_with("; Secure")));
}

#[test]
fn a_casdoor_that_is_away_or_silent_lets_nobody_in() {
    let origin = Origin::hello();
    let silent = Origin::scripted(Connection::await_close);
    for node in ["127.0.0.1:1".to_owned(), silent.node()] {
        let gateway = Gateway::start(rules(&origin, &node, json!({})));
        let (state, login) = begin(&gateway, "/x");
        let response = ask(&gateway, &format!("/back?code=good&state={state}"), &login);
        assert_eq!((response.status, response.fields.all("set-cookie").len()), (503, 0), "{node}");
    }
    assert_eq!(origin.requests().len(), 0);
}
