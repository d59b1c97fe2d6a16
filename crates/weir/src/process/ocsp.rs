//! The task that asks OCSP responders about the certificates whose status is stapled.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use weir_config::Settings;
use weir_net::tls::provider;
use weir_net::tls::staple::{Staple, staples};

use crate::agents::Agents;

/// Time limit of a question.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer. Those of responders have one or two KiB.
const MOST: u64 = 64 << 10;
/// Questions that are asked at one time.
const AT_ONCE: usize = 8;
/// Pause after a question without a good answer. It doubles each time, up to the time after which answers are renewed.
const PAUSE: Duration = Duration::from_secs(10);

/// A certificate that is followed.
struct Followed {
    staple: Weak<Staple>,
    /// The time of the next question.
    due: Instant,
    pause: Duration,
    /// The time after which the last answer holds no more.
    ends: Option<Instant>,
}

/// Asks for answers, each time they are due, for as long as the process serves.
pub(crate) async fn keep(settings: Settings) {
    let agents = Arc::new(Agents::new(&settings.tls.trusted_certificate, Some(TIMEOUT)));
    let mut followed: Vec<Followed> = Vec::new();
    loop {
        let now = Instant::now();
        let new = staples().take().into_iter();
        followed.extend(new.map(|staple| Followed { staple, due: now, pause: PAUSE, ends: None }));
        followed.retain(|followed| followed.staple.strong_count() > 0);
        let mut due: Vec<_> = followed.iter_mut().filter(|one| one.due <= now).collect();
        for some in due.chunks_mut(AT_ONCE) {
            let ask = |one: &mut &mut Followed| {
                let (agents, staple) = (Arc::clone(&agents), one.staple.upgrade()?);
                Some((Arc::clone(&staple), spawn_blocking(move || ask(&agents, &staple))))
            };
            let asked: Vec<_> = some.iter_mut().map(ask).collect();
            for (one, asked) in some.iter_mut().zip(asked) {
                let Some((staple, answer)) = asked else { continue };
                one.take(&staple, answer.await.unwrap_or_else(|error| Err(error.to_string())));
            }
        }
        let next = followed.iter().map(|one| one.due).min();
        // The time has come, or there are new certificates: both are looked for above.
        match next {
            Some(next) => drop(timeout_at(next, staples().came.notified()).await),
            None => staples().came.notified().await,
        }
    }
}

impl Followed {
    /// Takes an answer, and the time since 1970 at which there is a newer one.
    fn take(&mut self, staple: &Staple, answer: Result<(Vec<u8>, Option<Duration>), String>) {
        let now = Instant::now();
        match answer {
            Ok((answer, next)) => {
                staple.set(Some(answer));
                // One that ends soon is renewed when half of its time has passed.
                let left = next.map(|next| next.saturating_sub(unix()));
                self.due = now + left.map_or(staple.ttl, |left| staple.ttl.min((left / 2).max(PAUSE)));
                self.ends = left.map(|left| now + left);
                self.pause = PAUSE;
            }
            Err(reason) => {
                let seconds = self.pause.as_secs();
                tracing::warn!(
                    responder = staple.question.url,
                    reason,
                    "no status of a certificate; asked again in {seconds} s"
                );
                // An answer that is too old is worse than none: clients refuse it.
                if self.ends.is_some_and(|ends| ends <= now) {
                    staple.set(None);
                    self.ends = None;
                }
                self.due = now + self.pause;
                self.pause = (self.pause * 2).min(staple.ttl);
            }
        }
        // It is not stapled for longer than it holds, whoever answers meanwhile.
        if let Some(ends) = self.ends {
            self.due = self.due.min(ends.max(now + Duration::from_secs(1)));
        }
    }
}

fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn ask(agents: &Agents, staple: &Staple) -> Result<(Vec<u8>, Option<Duration>), String> {
    let question = &staple.question;
    let agent = agents.of(&question.url, true)?;
    let request = agent.post(&question.url).header("Content-Type", "application/ocsp-request");
    let answer = request.send(&question.der[..]).map_err(|error| error.to_string())?;
    if answer.status().as_u16() != 200 {
        return Err(format!("the responder answers with the status {}", answer.status().as_u16()));
    }
    let body = answer.into_body().with_config().limit(MOST).read_to_vec().map_err(|error| error.to_string())?;
    let next = match staple.skip_verify {
        true => question.next_update(&body),
        false => question.check(&body, &provider().signature_verification_algorithms, unix())?,
    };
    Ok((body, next))
}
