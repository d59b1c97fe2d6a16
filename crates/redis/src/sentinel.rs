//! The master that sentinels know.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use redis::Value;
use tokio::sync::{Semaphore, oneshot};
use weir_runtime::now_us;

use crate::error::Error;
use crate::link::{Link, Role};
use crate::script::write_words;
use crate::settings::{Server, Settings};

/// Microseconds from one question to the sentinels to the next.
const PAUSE: u64 = 100_000;

/// A master and whom to ask for it.
pub(crate) struct Sentinels {
    settings: Arc<Settings>,
    name: String,
    /// The one that answered last is asked first.
    sentinels: RefCell<Vec<Rc<Link>>>,
    master: RefCell<Option<Rc<Link>>>,
    /// One question at a time.
    turn: Semaphore,
    /// Time and outcome of the last question to the sentinels.
    asked: Cell<Option<u64>>,
    failed: RefCell<Option<Error>>,
}

impl Sentinels {
    pub(crate) fn new(sentinels: &[Server], name: &str, settings: &Arc<Settings>) -> Self {
        let link = |server: &Server| Rc::new(Link::new(server.clone(), Role::Sentinel, settings));
        Self {
            settings: Arc::clone(settings),
            name: name.to_owned(),
            sentinels: RefCell::new(sentinels.iter().map(link).collect()),
            master: RefCell::default(),
            turn: Semaphore::new(1),
            asked: Cell::new(None),
            failed: RefCell::default(),
        }
    }

    /// The connection to the master.
    pub(crate) async fn master(self: &Rc<Self>) -> Result<Rc<Link>, Error> {
        let known = self.master.borrow().clone();
        match known {
            Some(link) => Ok(link),
            None => self.ask_apart().await,
        }
    }

    /// Asks the sentinels again, for the master of `link` is of no use.
    pub(crate) async fn ask_again(self: &Rc<Self>, link: &Rc<Link>) -> Result<Rc<Link>, Error> {
        let is_known = |known: &Rc<Link>| Rc::ptr_eq(known, link);
        let newer = self.master.borrow().clone().filter(|known| !is_known(known));
        match newer {
            Some(newer) => Ok(newer),
            None => self.ask_apart().await,
        }
    }

    /// Asks in a task of its own: whoever waits may have less time than it takes.
    async fn ask_apart(self: &Rc<Self>) -> Result<Rc<Link>, Error> {
        let (done, asked) = oneshot::channel();
        let this = Rc::clone(self);
        weir_runtime::spawn(async move {
            let _ = done.send(this.ask().await);
        });
        asked.await.unwrap_or(Err(Error::Unexpected))
    }

    async fn ask(&self) -> Result<Rc<Link>, Error> {
        let began = now_us();
        let Ok(_turn) = self.turn.acquire().await else { return Err(Error::Unexpected) };
        let master = self.master.borrow().clone();
        if self.asked.get().is_some_and(|asked| asked + PAUSE > began) {
            let failed = self.failed.borrow().clone();
            return failed.map_or_else(|| master.ok_or(Error::Unexpected), Err);
        }
        let asked = self.ask_all().await;
        self.asked.set(Some(now_us()));
        let asked = asked.map(|server| match master {
            Some(link) if *link.server() == server => link,
            _ => Rc::new(Link::new(server, Role::Master, &self.settings)),
        });
        *self.failed.borrow_mut() = asked.as_ref().err().cloned();
        if let Ok(link) = &asked {
            let before = self.master.replace(Some(Rc::clone(link)));
            if before.is_none_or(|before| !Rc::ptr_eq(&before, link)) {
                tracing::info!(name = self.name, server = %link.server(), "the master of the sentinels");
            }
        }
        asked
    }

    async fn ask_all(&self) -> Result<Server, Error> {
        let sentinels = self.sentinels.borrow().clone();
        let mut failure = Error::Away("no sentinel is named".into());
        for (at, sentinel) in sentinels.iter().enumerate() {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name];
            let asked = match sentinel.send(false, |out| write_words(&words, out)) {
                Ok(reply) => reply.await,
                Err(error) => Err(error),
            };
            match asked.map(|reply| address(&reply, &self.name)) {
                Ok(Ok(server)) => {
                    self.sentinels.borrow_mut().swap(0, at);
                    return Ok(server);
                }
                Ok(Err(error)) | Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// The address in the reply of a sentinel.
fn address(reply: &Value, name: &str) -> Result<Server, Error> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [Value::BulkString(host), Value::BulkString(port)] => {
                let text = |bytes| std::str::from_utf8(bytes).ok();
                let server = text(host).zip(text(port).and_then(|port| port.parse().ok()));
                server.map(|(host, port)| Server { host: host.into(), port }).ok_or(Error::Unexpected)
            }
            _ => Err(Error::Unexpected),
        },
        Value::Nil => Err(Error::Away(format!("the sentinels know no master {name}").into())),
        Value::ServerError(error) => Err(Error::Refused(error.clone())),
        _ => Err(Error::Unexpected),
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::address;

    #[test]
    fn a_sentinel_names_an_address() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let found = address(&Value::Array(vec![bulk("10.0.0.1"), bulk("6379")]), "m").expect("an address");
        assert_eq!(found.to_string(), "10.0.0.1:6379");
        for reply in
            [Value::Nil, Value::Okay, Value::Array(vec![bulk("10.0.0.1")]), Value::Array(vec![bulk("a"), bulk("b")])]
        {
            assert!(address(&reply, "m").is_err(), "{reply:?}");
        }
    }
}
