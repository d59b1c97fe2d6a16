//! Certificates and the setups of TLS towards nodes, kept from one configuration to the next: an item that did not
//! change is not read again, and sessions with it can be resumed.

#![allow(clippy::disallowed_types, reason = "only compiling takes the locks, never a worker")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustls::RootCertStore;
use rustls::server::ProducesTickets;
use weir_config::{
    CheckType, ClientVerification, Code, Diagnostic, Model, OcspStapling, Scheme, Settings, Ssl, SslProtocol, SslType,
    Status, Upstream,
};
use weir_net::tls::client::{self, Alpn, Setup, SetupKey};

use super::Faults;
use crate::tls::server::{Host, Hosts, Sessions};
use crate::upstream::Protocol;

/// TLS settings and the certificates and setups that outlive a configuration.
pub(super) struct Certificates {
    fallback_sni: String,
    /// Versions of TLS for certificates that name none.
    protocols: Vec<SslProtocol>,
    session_tickets: bool,
    mtls_hosts_on_http: bool,
    trusted_certificate: String,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    hosts: HashMap<HostKey, Weak<Host>>,
    setups: HashMap<SetupKey, Weak<Setup>>,
    /// Ticket keys of the certificates that require no client certificate.
    tickets: Option<Arc<dyn ProducesTickets>>,
    self_signed: Option<Arc<Host>>,
    trusted: Option<Arc<RootCertStore>>,
}

/// Identity of an item for handshakes.
#[derive(PartialEq, Eq, Hash)]
struct HostKey {
    pairs: Vec<(String, String)>,
    client: Option<ClientVerification>,
    asks: bool,
    stapling: Option<OcspStapling>,
    protocols: Vec<SslProtocol>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("fallback_sni", &self.fallback_sni).finish_non_exhaustive()
    }
}

impl Certificates {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            fallback_sni: settings.tls.fallback_sni.clone(),
            protocols: settings.tls.protocols.iter().map(|version| version.protocol()).collect(),
            session_tickets: settings.tls.session_tickets,
            mtls_hosts_on_http: settings.tls.mtls_hosts_on_http,
            trusted_certificate: settings.tls.trusted_certificate.clone(),
            kept: Mutex::default(),
        }
    }

    /// The certificates for clients.
    pub(super) fn hosts(&self, model: &Model, faults: &mut Faults) -> Hosts {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let ssls = model.ssls.in_order();
        let ssls = ssls.into_iter().map(|listed| &*listed.item);
        let items = || ssls.clone().filter(|ssl| ssl.r#type == SslType::Server && ssl.status != Status::Disabled);
        let unconfigured = if items().next().is_none() { self.self_signed(&mut kept, faults) } else { None };
        // Without tickets, sessions of such certificates begin anew each time.
        let tickets = self.shared_tickets(&mut kept).unwrap_or_default();
        let issued = Sessions { protocols: self.protocols.clone(), tickets };
        let mut hosts = Hosts::new(&self.fallback_sni, self.mtls_hosts_on_http, unconfigured, issued);
        for ssl in items() {
            let host = self.host(&mut kept, ssl).map(Some).unwrap_or_else(|(field, reason)| {
                let path = format!("{}.{field}", ssl.origin.path);
                faults.item(Diagnostic::error(ssl.origin.mark, path, Code::Certificate { reason }));
                // Another certificate could take its names without asking clients for theirs.
                ssl.client.is_some().then(|| Arc::new(Host::left_out()))
            });
            let Some(host) = host else { continue };
            for (field, reason) in host.unstapled() {
                let path = format!("{}.{field}", ssl.origin.path);
                faults.warnings.push(Diagnostic::warning(
                    ssl.origin.mark,
                    path,
                    Code::NoStaple { reason: reason.clone() },
                ));
            }
            for name in ssl.names() {
                if !hosts.insert(name.as_str(), &host) {
                    let (mark, path) = (ssl.origin.mark, ssl.origin.path.to_string());
                    let code = Code::NameTaken { name: name.as_str().to_owned() };
                    faults.warnings.push(Diagnostic::warning(mark, path, code));
                }
            }
        }
        hosts
    }

    fn host(&self, kept: &mut Kept, ssl: &Ssl) -> Result<Arc<Host>, (String, String)> {
        if ssl.status == Status::LeftOut {
            return Ok(Arc::new(Host::left_out()));
        }
        if ssl.is_unresolved() {
            return Host::withheld(ssl).map(Arc::new);
        }
        let key = HostKey {
            pairs: ssl.pairs().map(|(cert, key)| (cert.to_owned(), key.reveal().to_owned())).collect(),
            client: ssl.client.clone(),
            asks: ssl.ask_client,
            stapling: ssl.ocsp_stapling.filter(|stapling| stapling.enabled),
            protocols: if ssl.ssl_protocols.is_empty() { &self.protocols } else { &ssl.ssl_protocols }.clone(),
        };
        if let Some(found) = kept.hosts.get(&key).and_then(Weak::upgrade) {
            return Ok(found);
        }
        // A session with a verified client may only be resumed where the same client verification applies, and one with a
        // client that was not asked for its certificate not where clients are.
        let tickets = match ssl.client.is_some() || ssl.ask_client {
            true => self.new_tickets(),
            false => self.shared_tickets(kept),
        };
        let tickets = tickets.map_err(|reason| (String::new(), reason))?;
        let made = Arc::new(Host::new(ssl, &key.protocols, tickets)?);
        kept.hosts.insert(key, Arc::downgrade(&made));
        Ok(made)
    }

    fn self_signed(&self, kept: &mut Kept, faults: &mut Faults) -> Option<Arc<Host>> {
        if kept.self_signed.is_none() {
            let made = self.shared_tickets(kept).and_then(|tickets| Host::self_signed(&self.protocols, tickets));
            match made {
                Ok(host) => kept.self_signed = Some(Arc::new(host)),
                Err(reason) => {
                    let code = Code::NoSelfSigned { reason };
                    faults.warnings.push(Diagnostic::warning(weir_config::Mark::NONE, "ssls", code));
                }
            }
        }
        kept.self_signed.clone()
    }

    fn shared_tickets(&self, kept: &mut Kept) -> Result<Option<Arc<dyn ProducesTickets>>, String> {
        if kept.tickets.is_none() {
            kept.tickets = self.new_tickets()?;
        }
        Ok(kept.tickets.clone())
    }

    fn new_tickets(&self) -> Result<Option<Arc<dyn ProducesTickets>>, String> {
        if !self.session_tickets {
            return Ok(None);
        }
        rustls::crypto::aws_lc_rs::Ticketer::new().map(Some).map_err(|error| error.to_string())
    }

    /// TLS setup for the nodes of an upstream; the error's path is relative to the upstream.
    pub(super) fn setup(
        &self,
        upstream: &Upstream,
        model: &Model,
    ) -> Result<Option<(SetupKey, Arc<Setup>)>, Diagnostic> {
        let alpn = match upstream.scheme {
            Scheme::Http | Scheme::Grpc | Scheme::Tcp | Scheme::Udp => return Ok(None),
            Scheme::Https if upstream.http2 => Alpn::Http2OrHttp1,
            Scheme::Https => Alpn::Http1,
            Scheme::Grpcs => Alpn::Http2,
            Scheme::Tls => Alpn::Nothing,
        };
        let verify = upstream.tls.as_ref().is_some_and(|tls| tls.verify);
        self.setup_with(upstream, model, verify, alpn).map(Some)
    }

    /// TLS setup for the active checks of an upstream: as for its nodes, but verified as the checks demand. `protocol` is
    /// that of checks of the type `https`.
    pub(super) fn setup_of_checks(
        &self,
        upstream: &Upstream,
        protocol: Protocol,
        model: &Model,
    ) -> Result<Option<Arc<Setup>>, Diagnostic> {
        let Some(checks) = &upstream.checks else { return Ok(None) };
        let alpn = match checks.active.r#type {
            CheckType::Https => match protocol {
                Protocol::Http1 => Alpn::Http1,
                Protocol::Http2 => Alpn::Http2,
                Protocol::Negotiated => Alpn::Http2OrHttp1,
            },
            CheckType::Grpc if upstream.scheme.has_tls() => Alpn::Http2,
            _ => return Ok(None),
        };
        let verify = checks.active.https_verify_certificate;
        match self.setup_with(upstream, model, verify, alpn) {
            Ok((_, setup)) => Ok(Some(setup)),
            Err(fault) if fault.path == "tls.verify" => {
                Err(Diagnostic { path: "checks.active.https_verify_certificate".to_owned(), ..fault })
            }
            Err(fault) => Err(fault),
        }
    }

    /// True for an upstream that shows a certificate that is not there, since a reference has no value.
    pub(super) fn lacks_certificate(&self, upstream: &Upstream, model: &Model) -> bool {
        let shown = upstream.tls.as_ref().and_then(|tls| tls.client_cert_id.as_ref());
        let ssl = shown.and_then(|id| model.ssls.get(id.as_str())).filter(|_| upstream.scheme.has_tls());
        upstream.is_unresolved() || ssl.is_some_and(|ssl| ssl.is_unresolved())
    }

    fn setup_with(
        &self,
        upstream: &Upstream,
        model: &Model,
        verify: bool,
        alpn: Alpn,
    ) -> Result<(SetupKey, Arc<Setup>), Diagnostic> {
        let tls = upstream.tls.clone().unwrap_or_default();
        let fault = |field: &str, reason: String| {
            Diagnostic::error(upstream.origin.mark, format!("tls.{field}"), Code::Certificate { reason })
        };
        let certificate = match (&tls.client_cert, &tls.client_key, &tls.client_cert_id) {
            (Some(cert), Some(key), _) => Some((cert.clone(), key.reveal().to_owned())),
            (_, _, Some(id)) => {
                let ssl = model.ssls.get(id.as_str()).filter(|ssl| ssl.r#type == SslType::Client);
                let ssl = ssl.ok_or_else(|| fault("client_cert_id", "there is no such certificate".to_owned()))?;
                Some((ssl.cert.clone(), ssl.key.reveal().to_owned()))
            }
            _ => None,
        };
        let authorities = tls.ca.clone().filter(|_| verify);
        let key = SetupKey { verify, authorities, certificate, alpn };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.setups.get(&key).and_then(Weak::upgrade) {
            return Ok((key, found));
        }
        let trusted = match (verify, &key.authorities) {
            (true, Some(pem)) => Some(client::authorities(pem).map(Arc::new).map_err(|reason| fault("ca", reason))?),
            (true, None) => Some(self.trusted(&mut kept).map_err(|reason| fault("verify", reason))?),
            (false, _) => None,
        };
        let made = Setup::new(&key, trusted).map_err(|(is_key, reason)| match (&tls.client_cert_id, is_key) {
            (Some(_), _) => fault("client_cert_id", reason),
            (None, true) => fault("client_key", reason),
            (None, false) => fault("client_cert", reason),
        })?;
        let made = Arc::new(made);
        kept.setups.insert(key.clone(), Arc::downgrade(&made));
        Ok((key, made))
    }

    fn trusted(&self, kept: &mut Kept) -> Result<Arc<RootCertStore>, String> {
        if let Some(found) = &kept.trusted {
            return Ok(Arc::clone(found));
        }
        let made = client::trusted(&self.trusted_certificate)
            .map_err(|reason| format!("tls.trusted_certificate of the settings: {reason}"))?;
        Ok(Arc::clone(kept.trusted.insert(Arc::new(made))))
    }

    /// Forgets what no configuration uses any more.
    pub(super) fn sweep(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.hosts.retain(|_, host| host.strong_count() > 0);
        kept.setups.retain(|_, setup| setup.strong_count() > 0);
    }
}
