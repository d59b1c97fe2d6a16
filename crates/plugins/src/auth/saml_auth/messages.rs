//! Messages of a service provider (SAML Core sections 3.4 and 3.7).

/// The kind of a message, by which its field is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Response,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Request => "SAMLRequest",
            Self::Response => "SAMLResponse",
        }
    }
}

/// The part that all messages have.
pub(super) struct Head<'m> {
    pub(super) id: &'m str,
    /// Seconds since 1970.
    pub(super) now: u64,
    pub(super) destination: &'m str,
    pub(super) issuer: &'m str,
}

/// A text in XML.
fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

impl Head<'_> {
    /// The message with this name, further attributes and content.
    fn message(&self, name: &str, attributes: &str, content: &str) -> String {
        let at = jiff::Timestamp::from_second(i64::try_from(self.now).unwrap_or_default()).unwrap_or_default();
        format!(
            "<samlp:{name} xmlns:samlp=\"urn:oasis:names:tc:SAML:2.0:protocol\" xmlns:saml=\"urn:oasis:names:tc:SAML:2.0:assertion\" \
             Version=\"2.0\" ID=\"{}\" IssueInstant=\"{at}\" Destination=\"{}\"{attributes}><saml:Issuer>{}</saml:Issuer>{content}</samlp:{name}>",
            text(self.id),
            text(self.destination),
            text(self.issuer),
        )
    }
}

/// The request for a login, whose answer comes to `place` by this binding.
pub(super) fn authn_request(head: &Head<'_>, place: &str, binding: &str) -> String {
    let attributes = format!(
        " ProtocolBinding=\"urn:oasis:names:tc:SAML:2.0:bindings:{binding}\" AssertionConsumerServiceURL=\"{}\"",
        text(place)
    );
    head.message("AuthnRequest", &attributes, "")
}

/// The request for a logout.
pub(super) fn logout_request(head: &Head<'_>, name_id: &str, session_index: Option<&str>) -> String {
    let index = session_index.map(|index| format!("<samlp:SessionIndex>{}</samlp:SessionIndex>", text(index)));
    let content = format!("<saml:NameID>{}</saml:NameID>{}", text(name_id), index.unwrap_or_default());
    head.message("LogoutRequest", "", &content)
}

/// The answer to a logout: the session has ended.
pub(super) fn logout_response(head: &Head<'_>, request: &str) -> String {
    let attributes = format!(" InResponseTo=\"{}\"", text(request));
    let status =
        "<samlp:Status><samlp:StatusCode Value=\"urn:oasis:names:tc:SAML:2.0:status:Success\"/></samlp:Status>";
    head.message("LogoutResponse", &attributes, status)
}

#[cfg(test)]
mod tests {
    use super::{Head, logout_request};

    #[test]
    fn values_are_texts() {
        let head = Head { id: "i", now: 1_700_000_000, destination: "https://i.test/?a&b", issuer: "<s>\"" };
        let message = logout_request(&head, "a&b", None);
        assert!(message.contains("Destination=\"https://i.test/?a&amp;b\""), "{message}");
        assert!(
            message.contains("<saml:Issuer>&lt;s&gt;&quot;</saml:Issuer><saml:NameID>a&amp;b</saml:NameID>"),
            "{message}"
        );
        assert!(message.contains("IssueInstant=\"2023-11-14T22:13:20Z\""), "{message}");
        assert!(!message.contains("SessionIndex"), "{message}");
    }
}
