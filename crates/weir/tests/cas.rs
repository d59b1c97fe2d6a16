//! Logins at CAS, with a peer that answers as its protocol says.

use serde_json::{Value, json};

use crate::harness::{Answer, Connection, Gateway, Origin, Reload, Response};

/// A server of CAS, which answers by the ticket.
fn cas() -> Origin {
    Origin::answering(|request| {
        let target = request.target.as_str();
        let query = target.strip_prefix("/cas/serviceValidate?ticket=").unwrap_or_else(|| panic!("{target}"));
        let (ticket, service) = query.split_once("&service=").expect("a service");
        assert_eq!(service, "http%3A%2F%2Fa.test%2Fback");
        let whole = |inner: &str| {
            Answer::ok(&format!(
                "<cas:serviceResponse xmlns:cas='http://www.yale.edu/tp/cas'>{inner}</cas:serviceResponse>"
            ))
        };
        match ticket {
            "ST-1" | "ST-2" | "ST-3%26" => {
                whole("<cas:authenticationSuccess>\n<cas:user>jack</cas:user></cas:authenticationSuccess>")
            }
            "ST-old" => whole(
                "<cas:authenticationFailure code='INVALID_TICKET'>no &lt;cas:user&gt;</cas:authenticationFailure>",
            ),
            "ST-nobody" => whole("<cas:authenticationSuccess><cas:user> </cas:user></cas:authenticationSuccess>"),
            "ST-both" => whole(
                "<cas:authenticationFailure code='X'><cas:authenticationSuccess><cas:user>jack</cas:user></cas:authenticationSuccess></cas:authenticationFailure>",
            ),
            "ST-page" => Answer::ok("<html>"),
            _ => {
                Answer::status(500, "<cas:authenticationSuccess><cas:user>jack</cas:user></cas:authenticationSuccess>")
            }
        }
    })
}

fn rules(origin: &Origin, cas: &str, more: Value) -> Value {
    let mut conf = json!({ "idp_uri": format!("http://{cas}/cas"), "cas_callback_uri": "http://a.test/back", "logout_uri": "/out",
                           "cookie": { "secret": "a secret of thirty-two characters", "secure": false } });
    crate::loggers::extend(&mut conf, more);
    json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": { "cas-auth": conf } }] })
}

fn ask(gateway: &Gateway, target: &str, cookies: &str) -> Response {
    gateway.client().request(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\nCookie: {cookies}\r\n\r\n"))
}

/// Name and value of each cookie that an answer sets.
fn cookies(response: &Response) -> Vec<String> {
    response.fields.all("set-cookie").iter().map(|line| line.split(';').next().expect("a pair").to_owned()).collect()
}

/// The cookie of a session for a ticket.
fn log_in(gateway: &Gateway, target: &str, ticket: &str) -> String {
    let login = cookies(&ask(gateway, target, "")).remove(0);
    let response = ask(gateway, &format!("/back?ticket={ticket}"), &login);
    assert_eq!((response.status, response.field("location")), (302, Some(target)), "{ticket}");
    let set = cookies(&response);
    assert_eq!(set[1], "CAS_REQUEST_URI=", "the login is over");
    set[0].clone()
}

#[test]
fn users_log_in_and_out() {
    let (origin, cas) = (Origin::hello(), cas());
    let gateway = Gateway::start(rules(&origin, &cas.node(), json!({})));
    let response = ask(&gateway, "/x?a=1", "");
    let location = format!("http://{}/cas/login?service=http%3A%2F%2Fa.test%2Fback", cas.node());
    assert_eq!((response.status, response.field("location")), (302, Some(location.as_str())));
    let line = response.field("set-cookie").expect("a cookie");
    assert!(line.starts_with("CAS_REQUEST_URI=") && line.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{line}");
    let login = cookies(&response).remove(0);
    for (ticket, login, status) in [
        ("ST-1", "", 401),
        ("ST-old", &login, 401),
        ("ST-nobody", &login, 401),
        ("ST-both", &login, 401),
        ("ST-page", &login, 401),
        ("ST-broken", &login, 503),
    ] {
        let response = ask(&gateway, &format!("/back?ticket={ticket}"), login);
        assert_eq!((response.status, response.fields.all("set-cookie").len()), (status, 0), "{ticket}");
    }
    assert_eq!(origin.requests().len(), 0);
    let session = log_in(&gateway, "/x?a=1", "ST-1");
    assert!(!session.contains("ST-1"), "a ticket, which stands in logs, opens nothing: {session}");
    assert_eq!(ask(&gateway, "/x?a=1", &session).status, 200);
    // A ticket is good once, and a login is no session.
    assert_eq!(ask(&gateway, "/back?ticket=ST-1", &login).status, 503);
    let as_login =
        format!("{}={}", session.split_once('=').expect("a name").0, login.split_once('=').expect("a value").1);
    assert_eq!(ask(&gateway, "/x", &as_login).status, 302);
    // Logouts: by the user, and by the server, as it sends them and as APISIX reads them.
    let response = ask(&gateway, "/out", &session);
    assert_eq!(response.field("location"), Some(format!("http://{}/cas/logout", cas.node()).as_str()));
    assert!(response.field("set-cookie").is_some_and(|line| line.contains("; Max-Age=0")));
    assert_eq!(ask(&gateway, "/x", &session).status, 302);
    let forms = [
        "logoutRequest=%3Csamlp%3ALogoutRequest%3E%3Csamlp%3ASessionIndex%3EST-2%3C%2Fsamlp%3ASessionIndex%3E%3C%2Fsamlp%3ALogoutRequest%3E",
        "<samlp:LogoutRequest><samlp:SessionIndex>ST-3&</samlp:SessionIndex></samlp:LogoutRequest>",
    ];
    for (ticket, form) in ["ST-2", "ST-3%26"].into_iter().zip(forms) {
        let session = log_in(&gateway, "/", ticket);
        assert_eq!(ask(&gateway, "/x", &session).status, 200);
        let length = form.len();
        let request = format!("POST /back HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n\r\n{form}");
        assert_eq!(gateway.client().request(request).status, 200);
        let response = ask(&gateway, "/x", &session);
        assert_eq!((response.status, response.fields.all("set-cookie").len()), (302, 2), "the old cookie goes");
    }
    // Another secret, and the attributes of cookies; a path alone, with the host of the request.
    let cookie = json!({ "secret": "another secret of thirty-two characters", "samesite": "None" });
    assert_eq!(gateway.reload(rules(&origin, &cas.node(), json!({ "cookie": cookie }))), Reload::Applied);
    assert_eq!(ask(&gateway, "/back?ticket=ST-1", &login).status, 401);
    let response = ask(&gateway, "/x", "");
    assert!(response.field("set-cookie").is_some_and(|line| line.ends_with("; SameSite=None; Secure")));
    assert_eq!(gateway.reload(rules(&origin, &cas.node(), json!({ "cas_callback_uri": "/back" }))), Reload::Applied);
    let location = ask(&gateway, "/x", "").field("location").expect("a place").to_owned();
    assert!(location.ends_with("/cas/login?service=http%3A%2F%2Fa.test%2Fback"), "{location}");
}

#[test]
fn a_cas_that_is_away_or_silent_lets_nobody_in() {
    let origin = Origin::hello();
    let silent = Origin::scripted(Connection::await_close);
    for node in ["127.0.0.1:1".to_owned(), silent.node()] {
        let gateway = Gateway::start(rules(&origin, &node, json!({})));
        let login = cookies(&ask(&gateway, "/x", "")).remove(0);
        let response = ask(&gateway, "/back?ticket=ST-1", &login);
        assert_eq!((response.status, response.fields.all("set-cookie").len()), (503, 0), "{node}");
    }
    assert_eq!(origin.requests().len(), 0);
}
