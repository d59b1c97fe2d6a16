//! Logins at brokers (SASL): PLAIN and SCRAM.

use weir_telemetry::reports::{Login, Mechanism};

use super::messages::{self, Reader};
use super::{Connection, Failure};
use crate::scram::{Hash, Scram};

impl Connection {
    /// Shows a broker user and password.
    pub(super) fn log_in(&mut self, login: &Login) -> Result<(), Failure> {
        let (name, hash) = match login.mechanism {
            Mechanism::Plain => ("PLAIN", None),
            Mechanism::ScramSha256 => ("SCRAM-SHA-256", Some(Hash::Sha256)),
            Mechanism::ScramSha512 => ("SCRAM-SHA-512", Some(Hash::Sha512)),
        };
        let answer = self.ask(messages::SASL_HANDSHAKE, &messages::handshake(name))?;
        if Reader::new(&answer).i16()? != 0 {
            return Err(Failure::Other(format!("the broker takes no login by {name}")));
        }
        let Login { user, password, .. } = login;
        let Some(hash) = hash else {
            return self.exchange(format!("\0{user}\0{password}").as_bytes()).map(drop);
        };
        let mut scram = Scram::new(hash, user, password).map_err(Failure::Other)?;
        let first = self.exchange(scram.first().as_bytes())?;
        let answer = scram.answer(&first).map_err(Failure::Other)?;
        let last = self.exchange(answer.as_bytes())?;
        scram.finish(&last).map_err(Failure::Other)
    }

    /// A step of a login: bytes of the mechanism, and those of the broker.
    fn exchange(&mut self, bytes: &[u8]) -> Result<String, Failure> {
        let answer = self.ask(messages::SASL_AUTHENTICATE, &messages::authenticate(bytes))?;
        let mut answer = Reader::new(&answer);
        let (code, reason) = (answer.i16()?, answer.text()?.unwrap_or_default());
        if code != 0 {
            return Err(Failure::Other(format!("the broker refuses the login: {reason} (error {code} of Kafka)")));
        }
        Ok(String::from_utf8_lossy(answer.bytes()?).into_owned())
    }
}
