//! Certificates that the gateway shows to clients and to upstreams, and those that it asks clients for.

use weir_config::{Diagnostic, Lowered, Mark, Node, ResourceKind};

use super::{Scripts, access, document, flag, list, map, text};
use crate::conf::Tls;
use crate::definition::Definition;
use crate::files::scripts::fingerprint;

/// True if clients of an API have to show a certificate of a list.
fn has_list(api: &Definition) -> bool {
    api.flag("use_mutual_tls_auth")
}

/// True if clients of an API have to show a certificate: one of a list, or one that is a key.
fn asks(api: &Definition) -> bool {
    has_list(api) || access::uses_certificates(api)
}

/// The certificates that clients of an API may show: the text of each, or its SHA-256. `None`: they need none.
pub(super) fn clients(api: &Definition, files: &Scripts, found: &mut Vec<Diagnostic>) -> Option<Node> {
    if !has_list(api) {
        return None;
    }
    let mark = api.node.mark;
    let (mut hashes, mut texts) = (Vec::new(), Vec::new());
    for entry in api.at("client_certificates").and_then(Node::as_seq).unwrap_or_default() {
        let Some(given) = entry.as_str().filter(|given| !given.is_empty()) else { continue };
        match (fingerprint(given), files.get(given)) {
            (Some(hash), _) => hashes.push(text(&hash.to_ascii_lowercase())),
            (None, Some(pem)) => texts.push(text(pem)),
            (None, None) => found.push(api.fault("client_certificates", format!("{given}: there is no such file"))),
        }
    }
    if hashes.is_empty() && texts.is_empty() {
        let reason =
            "every request is refused: client_certificates is empty (security.certificates of tyk.conf is not read)";
        found.push(api.doubt("use_mutual_tls_auth", reason));
    }
    Some(map(mark, [("sha256", list(mark, hashes)), ("pem", list(mark, texts))]))
}

/// Certificate and key that targets are shown (`upstream_certificates`): those of a host, with its port where it has one in the
/// URL, of its domain (`*.example.com`) or of all (`*`). Empty: none. `None`: a fault is among the findings.
pub(super) fn of_upstream(
    api: &Definition,
    hosts: &[String],
    files: &Scripts,
    found: &mut Vec<Diagnostic>,
) -> Option<Vec<(&'static str, Node)>> {
    const PLACE: &str = "upstream_certificates";
    let given = api.at(PLACE).and_then(Node::as_map).unwrap_or_default();
    if given.is_empty() || api.flag("upstream_certificates_disabled") {
        return Some(Vec::new());
    }
    let of = |host: &String| {
        let domain = host.split_once('.').map(|(_, domain)| format!("*.{domain}"));
        let names = [Some(host.clone()), domain, Some("*".to_owned())];
        let entry = |name: String| given.iter().find(|(key, _)| *key.text == *name)?.1.as_str();
        names.into_iter().flatten().find_map(entry).filter(|id| !id.is_empty())
    };
    let mut chosen: Vec<Option<&str>> = hosts.iter().map(of).collect();
    chosen.dedup();
    let id = match &chosen[..] {
        [] | [None] => return Some(Vec::new()),
        [Some(id)] => *id,
        _ => {
            found.push(api.fault(PLACE, "the targets of one API are shown one certificate, or none"));
            return None;
        }
    };
    let reason = match (fingerprint(id), files.get(id)) {
        (Some(_), _) => "the keys of certificates in Tyk's store are not there: name a file in PEM".to_owned(),
        (None, None) => format!("{id}: there is no such file"),
        (None, Some(pem)) => {
            let (key, certificates): (Vec<&str>, Vec<&str>) =
                blocks(pem).into_iter().partition(|block| block.contains(" PRIVATE KEY-----"));
            if let ([key], false) = (&key[..], certificates.is_empty()) {
                let certificate = certificates.concat();
                return Some(vec![("client_cert", text(&certificate)), ("client_key", text(key))]);
            }
            format!("{id}: expected a certificate and one key, both in PEM")
        }
    };
    found.push(api.fault(PLACE, reason));
    None
}

/// The blocks of a file in PEM that hold a certificate or a key.
fn blocks(pem: &str) -> Vec<&str> {
    let starts = pem.match_indices("-----BEGIN ").map(|(at, _)| at);
    let block = |from: usize| {
        let rest = pem.get(from..)?;
        let end = rest.find("-----END ")?;
        let line = rest.get(end..)?.find('\n').map_or(rest.len(), |length| end + length + 1);
        rest.get(..line)
    };
    let is_either = |block: &&str| {
        let name = block.lines().next().unwrap_or_default();
        name.contains("CERTIFICATE-----") || name.contains("PRIVATE KEY-----")
    };
    starts.filter_map(block).filter(is_either).collect()
}

/// Adds the certificates of `tyk.conf`. Clients are asked for theirs if an API needs one: under every name, since an API
/// that no client needs a certificate for takes those without one.
pub(super) fn certificates(
    tls: Option<&Tls>,
    apis: &[Definition],
    files: &Scripts,
    mark: Mark,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    let asking = apis.iter().find(|api| asks(api));
    let Some(tls) = tls else {
        if let Some(api) = asking {
            let reason = "no client can show a certificate without http_server_options.use_ssl of tyk.conf";
            let field = if has_list(api) { "use_mutual_tls_auth" } else { "auth.use_certificate" };
            found.push(api.doubt(field, reason));
        }
        return;
    };
    let mut names: Vec<&str> = Vec::new();
    let has_default = tls.certificates.iter().any(|certificate| certificate.name == "*");
    for (number, certificate) in tls.certificates.iter().enumerate() {
        let mut snis = Vec::new();
        let own = Some(certificate.name.as_str()).filter(|name| !name.is_empty());
        // The first is the one for every other name.
        let rest = Some("*").filter(|_| number == 0 && !has_default);
        for name in own.into_iter().chain(rest) {
            if !names.contains(&name) {
                names.push(name);
                snis.push(text(name));
            }
        }
        if snis.is_empty() {
            let reason = "expected a name that no other certificate has: it is never shown";
            let place = format!("http_server_options.certificates[{number}].domain_name");
            found.push(Diagnostic::warning(mark, place, crate::rule::rule(reason)));
            continue;
        }
        let of = |path: &str| text(files.get(path).map_or("", String::as_str));
        let id = format!("tls-{number}");
        let mut item = map(mark, [("id", text(&id)), ("snis", list(mark, snis))]);
        item.insert("cert", of(&certificate.cert));
        item.insert("key", of(&certificate.key));
        if tls.only_latest {
            item.insert("ssl_protocols", list(mark, vec![text("TLSv1.3")]));
        }
        if asking.is_some() {
            item.insert("ask_client", flag(true));
        }
        lowered.add(ResourceKind::Ssls, item, document(&id, None));
    }
}
