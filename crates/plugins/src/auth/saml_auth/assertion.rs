//! Assertions about users (SAML Core section 2.3), and what they have to say (SAML Profiles section 4.1.4).

use uppsala::NodeId;

use super::signatures::{ASSERTION, Document, PROTOCOL};

const SUCCESS: &str = "urn:oasis:names:tc:SAML:2.0:status:Success";
const BEARER: &str = "urn:oasis:names:tc:SAML:2.0:cm:bearer";
/// Seconds by which clocks may differ.
const SKEW: u64 = 60;
/// Conditions that are understood. One that is not forbids the use of an assertion (SAML Core section 2.5.1).
const CONDITIONS: [&str; 3] = ["AudienceRestriction", "OneTimeUse", "ProxyRestriction"];

/// The login that an assertion has to be for.
pub(super) struct Expected<'e> {
    /// The URL at which it is shown.
    pub(super) place: &'e str,
    /// The ID of the request.
    pub(super) request: &'e str,
    /// The name of this service provider.
    pub(super) audience: &'e str,
    /// Seconds since 1970.
    pub(super) now: u64,
}

/// A user.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) name_id: String,
    pub(super) session_index: Option<String>,
    /// End of the session, in seconds since 1970.
    pub(super) end: Option<u64>,
}

/// True where the status of an answer is success.
pub(super) fn has_succeeded(document: &Document<'_>, root: NodeId) -> bool {
    let status = document.child(root, PROTOCOL, "Status");
    let code = status.and_then(|status| document.child(status, PROTOCOL, "StatusCode"));
    code.and_then(|code| document.attribute(code, "Value")) == Some(SUCCESS)
}

/// The user of a signed assertion in an answer, if it is for this login.
pub(super) fn identity(
    document: &Document<'_>,
    root: NodeId,
    assertion: NodeId,
    expected: &Expected<'_>,
) -> Result<Identity, &'static str> {
    let says = |name: &str, wanted: &str| document.attribute(root, name).is_none_or(|value| value == wanted);
    if !says("Destination", expected.place) {
        return Err("an answer for another place");
    }
    if !says("InResponseTo", expected.request) {
        return Err("an answer to another request");
    }
    check_conditions(document, assertion, expected)?;
    let subject = document.child(assertion, ASSERTION, "Subject").ok_or("an assertion about nobody")?;
    let confirmations = document.children(subject, ASSERTION, "SubjectConfirmation");
    if !confirmations.iter().any(|confirmation| confirms(document, *confirmation, expected)) {
        return Err("an assertion for another place, request or time");
    }
    let name_id = document.child(subject, ASSERTION, "NameID").ok_or("an assertion about nobody")?;
    let name_id = document.tree.text_content_deep(name_id).trim().to_owned();
    if name_id.is_empty() {
        return Err("an assertion about nobody");
    }
    let statement = document.children(assertion, ASSERTION, "AuthnStatement").first().copied();
    let of_statement = |name: &str| document.attribute(statement?, name).map(str::to_owned);
    let end = match of_statement("SessionNotOnOrAfter") {
        Some(end) => Some(seconds(&end).ok_or("a time that cannot be read")?),
        None => None,
    };
    Ok(Identity { name_id, session_index: of_statement("SessionIndex"), end })
}

fn check_conditions(document: &Document<'_>, assertion: NodeId, expected: &Expected<'_>) -> Result<(), &'static str> {
    let conditions = document.child(assertion, ASSERTION, "Conditions").ok_or("an assertion without conditions")?;
    if !is_time(document, conditions, expected.now) {
        return Err("an assertion for another time");
    }
    let tree = &document.tree;
    let is_known = |node: NodeId| {
        tree.element(node).is_none_or(|element| CONDITIONS.iter().any(|name| element.matches_name_ns(ASSERTION, name)))
    };
    if !tree.children(conditions).into_iter().all(is_known) {
        return Err("an assertion with a condition that is not known");
    }
    let is_for_us = |restriction: &NodeId| {
        let audiences = document.children(*restriction, ASSERTION, "Audience");
        audiences.iter().any(|audience| tree.text_content_deep(*audience).trim() == expected.audience)
    };
    let restrictions = document.children(conditions, ASSERTION, "AudienceRestriction");
    // The profile wants one (SAML Profiles section 4.1.4.2).
    if restrictions.is_empty() || !restrictions.iter().all(is_for_us) {
        return Err("an assertion for another service provider");
    }
    Ok(())
}

/// True if the bearer of an assertion may show it here and now, for this login.
fn confirms(document: &Document<'_>, confirmation: NodeId, expected: &Expected<'_>) -> bool {
    let Some(data) = document.child(confirmation, ASSERTION, "SubjectConfirmationData") else { return false };
    let is = |name: &str, wanted: &str| document.attribute(data, name) == Some(wanted);
    document.attribute(confirmation, "Method") == Some(BEARER)
        && is("Recipient", expected.place)
        && is("InResponseTo", expected.request)
        && document.attribute(data, "NotOnOrAfter").is_some()
        && is_time(document, data, expected.now)
}

/// True between the two times of an element. A time that cannot be read is never.
fn is_time(document: &Document<'_>, of: NodeId, now: u64) -> bool {
    let time = |name: &str| document.attribute(of, name).map(seconds);
    let has_begun = time("NotBefore").is_none_or(|begin| begin.is_some_and(|begin| begin <= now + SKEW));
    has_begun && time("NotOnOrAfter").is_none_or(|end| end.is_some_and(|end| now < end.saturating_add(SKEW)))
}

fn seconds(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_second()).ok()
}

/// The ID of a request for a logout, if it is about this user and may still be followed.
pub(super) fn logout(document: &Document<'_>, root: NodeId, name_id: &str, now: u64) -> Result<String, &'static str> {
    let named = document.child(root, ASSERTION, "NameID").ok_or("a logout of nobody")?;
    if document.tree.text_content_deep(named).trim() != name_id {
        return Err("a logout of another user");
    }
    if !is_time(document, root, now) {
        return Err("a logout that is too old");
    }
    document.attribute(root, "ID").map(str::to_owned).ok_or("a logout without an ID")
}

#[cfg(test)]
mod tests {
    use super::{Expected, identity, logout};
    use crate::auth::saml_auth::signatures::{ASSERTION, Document, Message};

    const ANSWER: &str = "<p:Response xmlns:p=\"urn:oasis:names:tc:SAML:2.0:protocol\" xmlns=\"urn:oasis:names:tc:SAML:2.0:assertion\" \
        Destination=\"http://a.test/acs\" InResponseTo=\"R\"><Assertion ID=\"A\"><Subject><NameID>jack</NameID>\
        <SubjectConfirmation Method=\"urn:oasis:names:tc:SAML:2.0:cm:bearer\"><SubjectConfirmationData \
        Recipient=\"http://a.test/acs\" InResponseTo=\"R\" NotOnOrAfter=\"2026-01-01T00:05:00Z\"/></SubjectConfirmation></Subject>\
        <Conditions NotBefore=\"2026-01-01T00:00:00Z\" NotOnOrAfter=\"2026-01-01T00:05:00.5Z\"><AudienceRestriction>\
        <Audience>s</Audience></AudienceRestriction></Conditions><AuthnStatement SessionIndex=\"i\" \
        SessionNotOnOrAfter=\"2026-01-01T08:00:00Z\"/></Assertion></p:Response>";
    /// 2026-01-01T00:01:00Z.
    const NOW: u64 = 1_767_225_660;

    fn read(answer: &str, now: u64) -> Result<(String, Option<String>, Option<u64>), &'static str> {
        let message = Message::signed(answer);
        let document = Document::read(&message)?;
        let root = document.root("Response")?;
        let assertion = document.child(root, ASSERTION, "Assertion").ok_or("no assertion")?;
        let expected = Expected { place: "http://a.test/acs", request: "R", audience: "s", now };
        identity(&document, root, assertion, &expected).map(|user| (user.name_id, user.session_index, user.end))
    }

    #[test]
    fn an_assertion_is_for_one_login() {
        assert_eq!(read(ANSWER, NOW), Ok(("jack".into(), Some("i".into()), Some(1_767_254_400))));
        let confirmation = "<SubjectConfirmation Method=\"urn:oasis:names:tc:SAML:2.0:cm:bearer\"/>";
        for (from, to, says) in [
            ("Destination=\"http://a.test/acs\"", "Destination=\"http://b.test/acs\"", "another place"),
            ("acs\" InResponseTo=\"R\"><A", "acs\" InResponseTo=\"S\"><A", "another request"),
            ("Recipient=\"http://a.test/acs\"", "Recipient=\"http://b.test/acs\"", "another place, request"),
            ("Recipient=\"http://a.test/acs\"", "", "another place, request"),
            ("acs\" InResponseTo=\"R\" NotOn", "acs\" InResponseTo=\"S\" NotOn", "another place, request"),
            ("acs\" InResponseTo=\"R\" NotOn", "acs\" NotOn", "another place, request"),
            (" NotOnOrAfter=\"2026-01-01T00:05:00Z\"", "", "another place, request"),
            (
                "NotOnOrAfter=\"2026-01-01T00:05:00Z\"",
                "NotOnOrAfter=\"2025-01-01T00:05:00Z\"",
                "another place, request",
            ),
            (":cm:bearer", ":cm:sender-vouches", "another place, request"),
            ("NotBefore=\"2026-01-01T00:00:00Z\"", "NotBefore=\"2026-01-01T00:03:00Z\"", "another time"),
            ("NotBefore=\"2026-01-01T00:00:00Z\"", "NotBefore=\"soon\"", "another time"),
            ("00:05:00.5Z", "00:00:01.5Z", ""),
            ("2026-01-01T00:05:00.5Z", "2025-12-31T23:59:00Z", "another time"),
            ("<Audience>s<", "<Audience>t<", "another service provider"),
            ("<AudienceRestriction><Audience>s</Audience></AudienceRestriction>", "", "another service provider"),
            (
                "</AudienceRestriction>",
                "</AudienceRestriction><AudienceRestriction><Audience>t</Audience></AudienceRestriction>",
                "another service provider",
            ),
            ("</Conditions>", "<Condition/></Conditions>", "not known"),
            ("Conditions", "Others", "without conditions"),
            (">jack<", "> <", "about nobody"),
            ("<NameID>jack</NameID>", "", "about nobody"),
            ("<NameID>jack</NameID>", "<NameID>a</NameID><NameID>b</NameID>", "about nobody"),
            ("2026-01-01T08:00:00Z", "later", "cannot be read"),
            // Others beside the right one do no harm, nor do a comment, a condition that is known, and a clock that is late.
            ("<SubjectConfirmation ", &format!("{confirmation}<SubjectConfirmation "), ""),
            (">jack<", ">ja<!-- -->ck<", ""),
            ("</Conditions>", "<OneTimeUse/></Conditions>", ""),
            ("NotBefore=\"2026-01-01T00:00:00Z\"", "NotBefore=\"2026-01-01T00:02:00Z\"", ""),
        ] {
            let changed = ANSWER.replace(from, to);
            assert_ne!(changed, ANSWER, "{from}");
            match read(&changed, NOW) {
                Ok((name, ..)) => assert_eq!((name.as_str(), says), ("jack", ""), "{to}"),
                Err(reason) => assert!(!says.is_empty() && reason.contains(says), "{to}: {reason}"),
            }
        }
        assert!(read(ANSWER, NOW + 86_400).is_err());
    }

    #[test]
    fn a_logout_is_of_one_user() {
        let request = "<p:LogoutRequest xmlns:p=\"urn:oasis:names:tc:SAML:2.0:protocol\" xmlns:a=\"urn:oasis:names:tc:SAML:2.0:assertion\" \
            ID=\"L\" NotOnOrAfter=\"2026-01-01T00:05:00Z\"><a:NameID>jack</a:NameID></p:LogoutRequest>";
        let message = Message::signed(request);
        let document = Document::read(&message).unwrap();
        let root = document.root("LogoutRequest").unwrap();
        assert_eq!(logout(&document, root, "jack", NOW), Ok("L".to_owned()));
        assert!(logout(&document, root, "jill", NOW).is_err() && logout(&document, root, "jack", NOW + 600).is_err());
        assert!(document.root("LogoutResponse").is_err());
        for text in ["", "<a", "hello", "<!DOCTYPE a><a/>", "<a><!ENTITY b \"c\"></a>"] {
            assert!(Document::read(&Message::signed(text)).is_err(), "{text}");
        }
    }
}
