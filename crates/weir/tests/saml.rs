//! Logins at an identity provider of SAML 2.0: pysaml2, with what it signs changed on its way where that is told.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Gateway, Origin, Process, RawClient, Response, program, repository};

const ENTITY: &str = "http://sp.test/saml";
const PLACE: &str = "http://a.test/acs";

/// A running identity provider.
struct Provider {
    port: u16,
    certificate: String,
    /// The service provider's own.
    own_certificate: String,
    own_key: String,
    _process: Process,
    _output: BufReader<ChildStdout>,
    _folder: TempDir,
}

impl Provider {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("sp");
        let mut command = Command::new(program("openssl"));
        command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=sp", "-keyout"]);
        command.arg(own.with_extension("key")).arg("-out").arg(own.with_extension("crt")).stderr(Stdio::null());
        assert!(command.status().expect("openssl starts").success());
        let mut command = Command::new(repository().join("target/test-tools/bin/python"));
        command.arg(repository().join("crates/weir/tests/harness/saml.py")).arg(folder.path());
        command.args([ENTITY, PLACE, "http://a.test/sls"]).arg(own.with_extension("crt"));
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut output = BufReader::new(process.child().stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let port = line.trim().strip_prefix("ready ").and_then(|port| port.parse().ok());
        let read = |path: &std::path::Path| fs::read_to_string(path).expect("a file");
        Self {
            port: port.expect("tools/install-test-deps installs the provider"),
            certificate: read(&folder.path().join("idp.crt")),
            own_certificate: read(&own.with_extension("crt")),
            own_key: read(&own.with_extension("key")),
            _process: process,
            _output: output,
            _folder: folder,
        }
    }

    /// The answer to a request for this URL of the provider.
    fn ask(&self, url: &str, signs: &str) -> Response {
        let target = url.strip_prefix(&format!("http://127.0.0.1:{}", self.port)).unwrap_or_else(|| panic!("{url}"));
        let mut client = RawClient::connect(([127, 0, 0, 1], self.port).into());
        client.request(format!("GET {target} HTTP/1.1\r\nHost: idp\r\nX-Sign: {signs}\r\nConnection: close\r\n\r\n"))
    }
}

fn rules(origin: &Origin, provider: &Provider, more: Value) -> Value {
    let mut conf = json!({
        "sp_issuer": ENTITY, "idp_uri": format!("http://127.0.0.1:{}/sso", provider.port), "idp_cert": provider.certificate,
        "login_callback_uri": PLACE, "logout_uri": "/out", "logout_callback_uri": "/sls", "logout_redirect_uri": "/bye",
        "sp_cert": provider.own_certificate, "sp_private_key": provider.own_key, "secret": "a secret of cookies",
    });
    crate::loggers::extend(&mut conf, more);
    json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": { "saml-auth": conf } }] })
}

fn by_form() -> Value {
    json!({ "auth_protocol_binding_method": "HTTP-POST" })
}

fn get(gateway: &Gateway, target: &str, cookies: &str) -> Response {
    gateway.client().request(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\nCookie: {cookies}\r\n\r\n"))
}

/// Percent-encodes all that is no letter or digit.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

fn post(gateway: &Gateway, cookies: &str, document: &str, state: &str) -> Response {
    let body = format!("SAMLResponse={}&RelayState={}", encode(&STANDARD.encode(document)), encode(state));
    let length = body.len();
    gateway.client().request(format!(
        "POST /acs HTTP/1.1\r\nHost: a.test\r\nCookie: {cookies}\r\nContent-Length: {length}\r\n\r\n{body}"
    ))
}

/// Name and value of each cookie that an answer sets.
fn cookies(response: &Response) -> Vec<String> {
    response.fields.all("set-cookie").iter().map(|line| line.split(';').next().expect("a pair").to_owned()).collect()
}

fn location(response: &Response) -> &str {
    assert_eq!(response.status, 302, "{}", response.text());
    response.field("location").expect("a place")
}

/// Path and query of a URL of the gateway.
fn target(url: &str) -> &str {
    url.strip_prefix("http://a.test").unwrap_or_else(|| panic!("{url}"))
}

/// A login that has begun: its cookie, the document of the provider's answer, and its state.
fn begin(gateway: &Gateway, provider: &Provider, signs: &str) -> (String, String, String) {
    let response = get(gateway, "/x?a=1", "");
    let answer = provider.ask(location(&response), signs);
    let answer: Value = serde_json::from_str(&answer.text()).expect("JSON");
    let text = |name: &str| answer[name].as_str().expect("a text").to_owned();
    (cookies(&response).remove(0), text("document"), text("state"))
}

/// The cookie of a session.
fn log_in(gateway: &Gateway, provider: &Provider) -> String {
    let (login, document, state) = begin(gateway, provider, "assertion");
    let response = post(gateway, &login, &document, &state);
    assert_eq!(location(&response), "/x?a=1");
    cookies(&response).remove(0)
}

#[test]
fn users_log_in_by_forms_and_by_redirects() {
    let (origin, provider) = (Origin::hello(), Provider::start());
    let gateway = Gateway::start(rules(&origin, &provider, by_form()));
    for signs in ["assertion", "response", "both"] {
        let (login, document, state) = begin(&gateway, &provider, signs);
        assert!(login.starts_with("saml_login="), "{login}");
        let response = post(&gateway, &login, &document, &state);
        assert_eq!(location(&response), "/x?a=1", "{signs}");
        let set = response.fields.all("set-cookie");
        assert!(
            set[0].starts_with("saml_session=") && set[0].ends_with("; Path=/; HttpOnly; SameSite=None; Secure"),
            "{set:?}"
        );
        assert!(set[1].starts_with("saml_login=;"), "{set:?}");
        assert_eq!(get(&gateway, "/x?a=1", &cookies(&response)[0]).status, 200);
        // A login is good once: its cookie is gone, and an answer belongs to one.
        assert_eq!(post(&gateway, "", &document, &state).status, 400);
    }
    assert_eq!(origin.requests().len(), 3);
    let gateway = Gateway::start(rules(&origin, &provider, json!({})));
    let response = get(&gateway, "/x?a=1", "");
    let line = response.field("set-cookie").expect("a cookie");
    assert!(line.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{line}");
    let answer = provider.ask(location(&response), "");
    let back = target(location(&answer)).to_owned();
    let login = cookies(&response).remove(0);
    for (changed, status) in [
        (back.replace("SAMLResponse=", "SAMLResponse=a"), 401),
        (back.replace("RelayState=", "RelayState=a"), 401),
        (back.split("&Signature=").next().expect("a part").to_owned(), 401),
        (back.replace("rsa-sha256", "rsa-sha1"), 401),
        (back.replace("xmldsig-more%23rsa-sha256", "xmldsig%23rsa-sha1"), 401),
        (back.replace("SAMLResponse=", "SAMLRequest="), 400),
        ("/acs".to_owned(), 400),
    ] {
        assert_ne!(changed, back);
        assert_eq!(get(&gateway, &changed, &login).status, status, "{changed}");
    }
    let response = get(&gateway, &back, &login);
    assert_eq!(location(&response), "/x?a=1");
    assert_eq!(get(&gateway, "/", &cookies(&response)[0]).status, 200);
    assert_eq!(gateway.client().request("PUT /acs HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n").status, 405);
}

#[test]
fn answers_that_are_forged_are_refused() {
    let (origin, provider) = (Origin::hello(), Provider::start());
    let gateway = Gateway::start(rules(&origin, &provider, by_form()));
    let (login, document, state) = begin(&gateway, &provider, "assertion");
    let assertion = {
        let begin = document.find("<ns1:Assertion").expect("an assertion");
        let end = document.find("</ns1:Assertion>").expect("its end") + "</ns1:Assertion>".len();
        document[begin..end].to_owned()
    };
    let signature = {
        let begin = assertion.find("<ns2:Signature").or_else(|| assertion.find("<ds:Signature")).expect("a signature");
        let end = assertion
            .find("Signature>")
            .map(|_| assertion.rfind("Signature>").expect("its end") + 10)
            .expect("its end");
        assertion[begin..end].to_owned()
    };
    let id = assertion.split("ID=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an ID").to_owned();
    let evil = assertion.replace(&signature, "").replace(&id, "evil").replace(">jack<", ">root<");
    assert!(evil.contains(">root<") && !evil.contains("Signature"), "{evil}");
    let (_, unsigned, _) = begin(&gateway, &provider, "none");
    let forged = [
        ("another name", document.replace(">jack<", ">root<")),
        ("no signature", document.replace(&signature, "")),
        ("nothing signed", unsigned),
        ("a second assertion before", document.replace(&assertion, &format!("{evil}{assertion}"))),
        ("a second assertion behind", document.replace(&assertion, &format!("{assertion}{evil}"))),
        ("the signed one within another", document.replace(&assertion, &evil.replace("</ns1:Assertion>", &format!("{assertion}</ns1:Assertion>")))),
        ("the signed one within extensions", document.replace(&assertion, &format!("<ns0:Extensions xmlns:ns0=\"urn:oasis:names:tc:SAML:2.0:protocol\">{assertion}</ns0:Extensions>{evil}"))),
        ("its signature in another", document.replace(&assertion, &evil.replacen("<ns1:Subject>", &format!("{signature}<ns1:Subject>"), 1))),
        ("the same ID twice", document.replace(&assertion, &format!("{assertion}{}", evil.replace("evil", &id)))),
        ("a DTD", document.replacen("<ns0:Response", "<!DOCTYPE a [<!ENTITY b \"c\">]><ns0:Response", 1)),
        ("a failure", document.replace("status:Success", "status:Responder")),
        ("a request", document.replace("Response", "AuthnRequest")),
        ("no XML", "hello".to_owned()),
    ];
    for (what, forged) in forged {
        assert_ne!(forged, document, "{what}");
        let response = post(&gateway, &login, &forged, &state);
        assert!([401, 500].contains(&response.status), "{what}: {}", response.status);
        assert_eq!(response.status == 500, what == "a failure", "{what}");
        assert!(cookies(&response).is_empty(), "{what}");
    }
    assert_eq!(post(&gateway, &login, &document, "another").status, 401);
    assert_eq!(post(&gateway, &login, &"a".repeat(300 << 10), &state).status, 400);
    // The answer to one login is none to another.
    let (other, _, other_state) = begin(&gateway, &provider, "assertion");
    assert_eq!(post(&gateway, &other, &document, &other_state).status, 401);
    // A comment is no part of a name.
    let response = post(&gateway, &login, &document.replace(">jack<", ">ja<!-- -->ck<"), &state);
    assert_eq!(location(&response), "/x?a=1");
    // Another provider's certificate, and another place.
    let mut other = rules(&origin, &provider, by_form());
    other["routes"][0]["plugins"]["saml-auth"]["idp_cert"] = json!(provider.own_certificate);
    let gateway = Gateway::start(other);
    let (login, document, state) = begin(&gateway, &provider, "both");
    assert_eq!(post(&gateway, &login, &document, &state).status, 401);
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn sessions_belong_to_a_secret() {
    let (origin, provider) = (Origin::hello(), Provider::start());
    let start = |secret: &str, former: &[&str]| {
        let mut more = by_form();
        more["secret"] = json!(secret);
        more["secret_fallbacks"] = json!(former);
        Gateway::start(rules(&origin, &provider, more))
    };
    let session = log_in(&start("secret-one", &[]), &provider);
    for (secret, former, status) in
        [("secret-one", &[][..], 200), ("secret-two", &[], 302), ("secret-two", &["secret-one"], 200)]
    {
        assert_eq!(get(&start(secret, former), "/", &session).status, status, "{secret} {former:?}");
    }
    let gateway = start("secret-one", &[]);
    for forged in
        ["saml_session=", "saml_session=AAAA", &session.replace("saml_session=", "saml_session=A"), "saml_login=a"]
    {
        assert_eq!(get(&gateway, "/", forged).status, 302, "{forged}");
    }
    // The cookie of a login is none of a session.
    let login = cookies(&get(&gateway, "/", "")).remove(0);
    assert_eq!(get(&gateway, "/", &login.replace("saml_login", "saml_session")).status, 302);
}

#[test]
fn users_log_out_here_and_at_the_provider() {
    let (origin, provider) = (Origin::hello(), Provider::start());
    let gateway = Gateway::start(rules(&origin, &provider, by_form()));
    assert_eq!(get(&gateway, "/out", "").status, 401);
    let session = log_in(&gateway, &provider);
    let response = get(&gateway, "/out", &session);
    let answer = provider.ask(location(&response), "");
    let back = target(location(&answer)).to_owned();
    assert_eq!(get(&gateway, &back, "").status, 401);
    assert_eq!(get(&gateway, &back.replace("SAMLResponse=", "SAMLResponse=a"), &session).status, 401);
    let response = get(&gateway, &back, &session);
    assert_eq!((location(&response), cookies(&response)), ("/bye", vec!["saml_session=".to_owned()]));
    assert!(response.field("set-cookie").is_some_and(|line| line.contains("; Max-Age=0")));
    // The provider begins.
    let session = log_in(&gateway, &provider);
    let begun = |name: &str| {
        let answer = provider.ask(&format!("http://127.0.0.1:{}/out?{name}", provider.port), "");
        target(location(&answer)).to_owned()
    };
    assert_eq!(get(&gateway, &begun("jill"), &session).status, 401);
    let response = get(&gateway, &begun("jack"), &session);
    let place = location(&response);
    assert!(place.starts_with(&format!("http://127.0.0.1:{}/sso?SAMLResponse=", provider.port)), "{place}");
    assert_eq!(cookies(&response), ["saml_session="]);
    assert_eq!(origin.requests().len(), 0);
}
