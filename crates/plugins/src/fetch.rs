//! HTTP requests to URLs that are only known when they are made: a connection of its own for each.

use std::sync::Arc;

use weir_net::{Network, Stream};
use weir_wire::method::Method;

use crate::requests::batch_requests::connection::{Answer, Connection, Fault};

/// A URL in its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url<'u> {
    is_tls: bool,
    host: &'u str,
    port: u16,
    /// Host and port as they stand in the URL, for the field `Host`.
    pub(crate) authority: &'u str,
    /// Path and query as they stand in the URL; empty where it has none.
    pub(crate) target: &'u str,
}

impl<'u> Url<'u> {
    /// Reads a URL of `http` or `https`.
    pub(crate) fn parse(url: &'u str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("expected a URL such as http://example.com")?;
        let is_tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err("expected a URL with http or https"),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse::<u16>().map_err(|_| "the port of the URL is no number up to 65535")?)
            }
            _ => (authority, if is_tls { 443 } else { 80 }),
        };
        let bare = host.trim_matches(['[', ']']);
        if bare.is_empty() || bare.contains(['/', '@']) {
            return Err("expected a URL with a host");
        }
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("expected a URL of printable ASCII characters");
        }
        Ok(Self { is_tls, host, port, authority, target })
    }

    /// Sends a message, which has this method, and receives the answer, whose body may have so many bytes. With `verify` the
    /// certificate of the server is verified. The caller sets the time limit.
    pub(crate) async fn ask(
        &self,
        network: &Arc<Network>,
        verify: bool,
        message: &[u8],
        method: Method,
        most: usize,
    ) -> Result<Answer, String> {
        let setup = self.is_tls.then(|| network.tls(verify)).transpose()?;
        let bare = self.host.trim_matches(['[', ']']);
        let stream = Stream::connect(bare, self.port, setup.as_ref(), self.host, network.names()).await;
        let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        let answer = Connection::new(Box::new(stream)).ask(message, method, most).await;
        let (answer, _) = answer.map_err(|fault| match fault {
            Fault::NoRoom => "there is no room for the answer".to_owned(),
            Fault::Broken(reason) => reason.to_owned(),
        })?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn urls_have_parts() {
        for (url, host, port, target) in [
            ("http://a.test", "a.test", 80, ""),
            ("https://a.test/x?y", "a.test", 443, "/x?y"),
            ("http://a.test:8080?y", "a.test", 8080, "?y"),
            ("http://[::1]:81/", "[::1]", 81, "/"),
            ("http://[::1]/", "[::1]", 80, "/"),
        ] {
            let parts = Url::parse(url).expect(url);
            assert_eq!((parts.host, parts.port, parts.target), (host, port, target), "{url}");
        }
        for (url, says) in [
            ("a.test", "such as"),
            ("ftp://a.test", "http or https"),
            ("http:///x", "with a host"),
            ("http://u@a.test", "with a host"),
            ("http://a.test:99999", "no number"),
            ("http://a.test/\r\n", "printable"),
        ] {
            assert!(Url::parse(url).expect_err(url).contains(says), "{url}");
        }
    }
}
