//! One order of a certificate (RFC 8555 section 7.4).

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, BodyWrapper, BytesResponse, ChallengeType, Error,
    ExternalAccountKey, HttpClient, Identifier, NewAccount, NewOrder, Order, OrderStatus,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::Value as Json;

use crate::Http;
use crate::authority::{Authority, KeyKind};
use crate::issued::ISSUED;
use crate::storage::Storage;

/// Pauses between two questions for the state of an order: together longer than authorities take to prove a name.
const PAUSES: [u64; 12] = [100, 200, 400, 800, 1500, 3000, 5000, 5000, 10_000, 10_000, 10_000, 10_000];
/// Problem of an account that the authority does not know (section 6.7).
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// The gateway's HTTP client, as the library takes one.
struct Client(Http);

impl HttpClient for Client {
    fn request(
        &self,
        request: http::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let http = Http::clone(&self.0);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(|error| Error::Other(Box::new(error)))?.to_bytes();
            let response =
                http(http::Request::from_parts(head, body.to_vec())).map_err(|text| Error::Other(text.into()))?;
            let (parts, body) = response.into_parts();
            Ok(BytesResponse { parts, body: Box::new(Bytes::from(body)) })
        })
    }
}

/// The places of answers to challenges.
pub(crate) struct Challenges<'a>(pub(crate) Option<&'a Storage<'a>>);

impl Challenges<'_> {
    async fn put(&self, token: &str, answer: &str) -> Result<(), String> {
        ISSUED.put_challenge(token.to_owned(), answer);
        match self.0 {
            Some(storage) => storage.put_challenge(token, answer).await,
            None => Ok(()),
        }
    }

    async fn end(&self, token: &str) {
        ISSUED.end_challenge(token);
        if let Some(storage) = self.0 {
            // One that stays ends by itself after a while.
            let _ = storage.end_challenge(token).await;
        }
    }
}

/// Orders a certificate: its text and that of its key. The account is made where there is none.
///
/// # Errors
/// Description for the log.
pub(crate) async fn order(
    name: &str,
    authority: &Authority,
    account: &mut Option<Json>,
    challenges: &Challenges<'_>,
    http: &Http,
) -> Result<(String, String), String> {
    let ask = async |account: &Account| {
        let identifiers = [Identifier::Dns(name.to_owned())];
        account.new_order(&NewOrder::new(&identifiers)).await
    };
    let mut order = ask(&signed_in(authority, account, http).await?).await;
    // An authority may lose its accounts; those for tests do at every start.
    if matches!(&order, Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(NO_ACCOUNT)) {
        *account = None;
        order = ask(&signed_in(authority, account, http).await?).await;
    }
    let mut order = order.map_err(|error| format!("the order was refused: {error}"))?;
    let mut tokens = Vec::new();
    let certificate = proved(name, authority, &mut order, challenges, &mut tokens).await;
    for token in tokens {
        challenges.end(&token).await;
    }
    certificate
}

/// The account with the authority.
async fn signed_in(authority: &Authority, account: &mut Option<Json>, http: &Http) -> Result<Account, String> {
    let builder = || Account::builder_with_http(Box::new(Client(Http::clone(http))));
    let held = account.as_ref().and_then(|account| serde_json::from_value::<AccountCredentials>(account.clone()).ok());
    if let Some(held) = held {
        return builder()
            .from_credentials(held)
            .await
            .map_err(|error| format!("the authority does not answer: {error}"));
    }
    let contact = format!("mailto:{}", authority.email);
    // As Kong: whoever names an authority accepts its terms. For Let's Encrypt the configuration has to say so.
    let asked = NewAccount { contact: &[&contact], terms_of_service_agreed: true, only_return_existing: false };
    let external = authority.external_account.as_ref().map(|(id, key)| ExternalAccountKey::new(id.clone(), key));
    let made = builder().create(&asked, authority.directory.clone(), external.as_ref()).await;
    let (made, credentials) = made.map_err(|error| format!("the authority gives no account: {error}"))?;
    *account = Some(serde_json::to_value(&credentials).map_err(|error| error.to_string())?);
    Ok(made)
}

/// Proves that the name is served here, and takes the certificate.
async fn proved(
    name: &str,
    authority: &Authority,
    order: &mut Order,
    challenges: &Challenges<'_>,
    tokens: &mut Vec<String>,
) -> Result<(String, String), String> {
    let text = |error: Error| error.to_string();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(text)?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let mut challenge =
            authorization.challenge(ChallengeType::Http01).ok_or("the authority offers no proof by HTTP")?;
        tokens.push(challenge.token.clone());
        challenges.put(&challenge.token, challenge.key_authorization().as_str()).await?;
        challenge.set_ready().await.map_err(text)?;
    }
    settled(order, |status| status == OrderStatus::Ready).await?;
    let key = match authority.key {
        KeyKind::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyKind::Rsa3072 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
        KeyKind::Rsa4096 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
        KeyKind::EcP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
    };
    let key = key.map_err(|error| format!("no key can be made: {error}"))?;
    let mut asked = CertificateParams::new(vec![name.to_owned()]).map_err(|error| error.to_string())?;
    asked.distinguished_name = DistinguishedName::new();
    let asked = asked.serialize_request(&key).map_err(|error| error.to_string())?;
    order.finalize_csr(asked.der()).await.map_err(text)?;
    settled(order, |status| status == OrderStatus::Valid).await?;
    let certificate = order.certificate().await.map_err(text)?.ok_or("the authority gives no certificate")?;
    Ok((certificate, key.serialize_pem()))
}

/// Waits for a state of an order.
async fn settled(order: &mut Order, is_it: impl Fn(OrderStatus) -> bool) -> Result<(), String> {
    for pause in PAUSES {
        let state = order.refresh().await.map_err(|error| error.to_string())?;
        if let Some(problem) = &state.error {
            return Err(format!("the authority says: {problem}"));
        }
        match state.status {
            status if is_it(status) => return Ok(()),
            OrderStatus::Invalid => return Err(refused(order).await),
            _ => weir_runtime::sleep(Duration::from_millis(pause)).await,
        }
    }
    Err("the authority has not come to an end within a minute".to_owned())
}

/// The authority's reason about a name that it could not prove.
async fn refused(order: &mut Order) -> String {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { break };
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return format!("the authority says: {problem}");
        }
    }
    "the authority says that the order is not valid".to_owned()
}
