//! Certificates of clients: `/tyk/certs`. They are kept without keys.

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use serde_json::{Value, json};
use weir_net::tls::authorities::Facts;
use weir_net::tls::pem;
use weir_plugins::tyk::ApiRequest;
use weir_plugins::tyk::sessions::records::certificate;

use super::records::Records;
use super::{GatewayApi, Outcome, argument, hex, method_not_supported, status};

/// Beginning of the names of certificates and of lists of them.
const PREFIX: &str = "cert-";
/// Digits of a SHA-256.
const DIGITS: usize = 64;

/// Answers a request for certificates.
pub(super) fn answer(api: &GatewayApi, request: &ApiRequest, method: &str, rest: &[&str]) -> Outcome {
    let records = Records::of(api, request);
    let org = argument(request, "org_id").unwrap_or_default();
    match (method, rest) {
        ("POST", []) => add(&records, org, &request.body),
        ("GET", []) => list(&records, org, argument(request, "mode") == Some("detailed")),
        ("GET", [ids]) if ids.contains(',') => {
            let each = ids.split(',').map(|id| Ok(facts(&records, id)?.map_or(Value::Null, |found| whole(id, &found))));
            each.collect::<Result<Vec<_>, _>>().map(Value::Array)
        }
        ("GET", [id]) => match facts(&records, id)? {
            Some(found) => Ok(whole(id, &found)),
            None => Err((404, "Certificate with given SHA256 fingerprint not found".to_owned())),
        },
        ("DELETE", [id]) => {
            let own = id.len().checked_sub(DIGITS).and_then(|end| id.get(..end)).unwrap_or_default();
            let org = if org.is_empty() { own } else { org };
            records.enlist(PREFIX, &format!("{org}-index"), &certificate(id), false)?;
            records.remove(&certificate(id))?;
            Ok(status("ok", "removed"))
        }
        _ => method_not_supported(),
    }
}

fn add(records: &Records<'_>, org: &str, body: &[u8]) -> Outcome {
    let refused = |text: String| Err((403, text));
    let Ok(text) = std::str::from_utf8(body) else { return refused("expected certificates in PEM".to_owned()) };
    if text.contains("PRIVATE KEY-----") {
        let reason = "private keys are not kept: certificates of the gateway itself are files, which \
                      http_server_options.certificates of tyk.conf names";
        return refused(reason.to_owned());
    }
    let all = match pem::certificates(text) {
        Ok(all) => all,
        Err(reason) => return refused(reason),
    };
    let Some(own) = all.first().filter(|own| Facts::read(own).is_some()) else {
        return refused("expected a certificate in PEM".to_owned());
    };
    let id = format!("{org}{}", hex(digest(&SHA256, own).as_ref()));
    let name = certificate(&id);
    if records.get(&name)?.is_some() {
        return refused(format!("Certificate with {id} id already exists"));
    }
    records.put(&name, text, 0)?;
    records.enlist(PREFIX, &format!("{org}-index"), &name, true)?;
    Ok(json!({ "id": id, "status": "ok", "message": "Certificate added" }))
}

fn list(records: &Records<'_>, org: &str, is_detailed: bool) -> Outcome {
    let found = records.listed(PREFIX, &format!("{org}-index"), &format!("raw-{org}"))?;
    let beginning = certificate("").len();
    let mut listed = Vec::new();
    for (name, text) in found {
        let id = name.get(beginning..).unwrap_or_default();
        // The name of one organisation may begin with that of another.
        if id.len() != org.len() + DIGITS {
            continue;
        }
        listed.push(match is_detailed {
            false => id.into(),
            true => read(&text).map_or(Value::Null, |facts| basics(id, &facts)),
        });
    }
    // As Go writes a list that nothing was put into.
    let listed = Some(listed).filter(|listed| !listed.is_empty());
    Ok(json!({ "certs": listed }))
}

fn facts(records: &Records<'_>, id: &str) -> Result<Option<Facts>, (u16, String)> {
    Ok(records.get(&certificate(id))?.and_then(|text| read(&text)))
}

fn read(text: &str) -> Option<Facts> {
    Facts::read(pem::certificates(text).ok()?.first()?)
}

fn time(since_1970: std::time::Duration) -> Value {
    Timestamp::from_second(since_1970.as_secs() as i64).map_or(Value::Null, |time| time.to_string().into())
}

fn basics(id: &str, facts: &Facts) -> Value {
    json!({
        "id": id, "issuer_cn": facts.issuer, "subject_cn": facts.subject, "dns_names": facts.names, "has_private": false,
        "not_before": time(facts.not_before), "not_after": time(facts.not_after), "is_ca": facts.is_authority,
    })
}

fn whole(id: &str, facts: &Facts) -> Value {
    json!({
        "id": id, "fingerprint": id.get(id.len().saturating_sub(DIGITS)..).unwrap_or_default(), "has_private": false,
        "issuer": { "CommonName": facts.issuer }, "subject": { "CommonName": facts.subject },
        "not_before": time(facts.not_before), "not_after": time(facts.not_after), "dns_names": facts.names,
        "is_ca": facts.is_authority,
    })
}
