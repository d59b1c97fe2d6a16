//! Names that workers need the addresses of. The control thread resolves them, with the settings of `dns`.

use std::net::IpAddr;

use tokio::sync::{Mutex, mpsc, oneshot};

/// Most queries that wait for the control thread.
const WAITING: usize = 256;

/// Queries of workers for the addresses of names.
#[derive(Debug)]
pub struct Names {
    ask: mpsc::Sender<Question>,
    asked: Mutex<mpsc::Receiver<Question>>,
}

/// Query for the addresses of a name.
#[derive(Debug)]
pub struct Question {
    name: Box<str>,
    answer: oneshot::Sender<Answer>,
}

/// The addresses of a name, at least one; or why there are none.
pub type Answer = Result<Vec<IpAddr>, String>;

impl Default for Names {
    fn default() -> Self {
        let (ask, asked) = mpsc::channel(WAITING);
        Self { ask, asked: Mutex::new(asked) }
    }
}

impl Names {
    /// The addresses of `host`: a name, or an address itself.
    ///
    /// # Errors
    /// The name has no address, or too many queries wait.
    pub async fn resolve(&self, host: &str) -> Answer {
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            return Ok(vec![address]);
        }
        let (answer, answered) = oneshot::channel();
        let question = Question { name: host.into(), answer };
        self.ask.try_send(question).map_err(|_| format!("too many lookups of names wait before that of {host}"))?;
        answered.await.unwrap_or_else(|_| Err("the resolver has ended".to_owned()))
    }

    /// The next query, for the resolver.
    pub async fn next(&self) -> Question {
        match self.asked.lock().await.recv().await {
            Some(question) => question,
            // Never: `ask` lives as long as this does.
            None => std::future::pending().await,
        }
    }
}

impl Question {
    /// The name to resolve.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends the answer; its receiver may be gone.
    pub fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{Names, WAITING};

    #[test]
    fn addresses_are_no_questions_and_questions_have_a_bound() {
        let checked = weir_runtime::block_on(async {
            let names = Names::default();
            assert_eq!(names.resolve("127.0.0.1").await, Ok(vec![IpAddr::from([127, 0, 0, 1])]));
            assert_eq!(names.resolve("[::1]").await.map(|found| found.len()), Ok(1));
            let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(names.resolve("redis.test"))).collect();
            for question in &mut waiting {
                std::future::poll_fn(|cx| {
                    assert!(question.as_mut().poll(cx).is_pending());
                    std::task::Poll::Ready(())
                })
                .await;
            }
            assert!(names.resolve("another.test").await.is_err_and(|reason| reason.contains("too many")));
            let question = names.next().await;
            assert_eq!(question.name(), "redis.test");
            question.answer(Err("no such name".to_owned()));
            assert_eq!(waiting.remove(0).await, Err("no such name".to_owned()));
        });
        checked.expect("a runtime");
    }
}
