//! Authentication by a script (`custom_middleware.auth_check`).

use serde_json::{Map, Value};
use weir_javascript::Entry;
use weir_plugin::{BuildCx, Invalid, PerRequest, RequestCx};

use super::{Conf, Runner, Scripts, run};
use crate::tyk::changes::{Answer, FAILED};
use crate::tyk::coprocess::Verdict;
use crate::tyk::sessions::remote;
use crate::tyk::shared::Known;

/// The authentication, compiled.
pub(in crate::tyk) struct Check {
    /// The middleware.
    name: String,
    /// The scripts, until they are built.
    scripts: Option<(Scripts, remote::Conf)>,
    runner: Option<Runner>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Check {
    /// # Errors
    /// The script cannot be run.
    pub(in crate::tyk) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let api = (&*conf.api_id, &*conf.org_id, &conf.config_data);
        let scripts = Scripts::new(conf.scripts, (Entry::Middleware, &conf.middleware), conf.timeout, api)?;
        let name = conf.middleware.into_iter().next().unwrap_or_default();
        Ok(Self { name, scripts: Some((scripts, conf.storage)), runner: None })
    }

    pub(in crate::tyk) fn build(&mut self, build: &BuildCx<'_>) -> Result<(), Invalid> {
        if let Some((scripts, storage)) = self.scripts.take() {
            self.runner = Some(scripts.build(&storage, build)?);
        }
        Ok(())
    }

    /// Asks who the caller is. A script that fails lets nobody through.
    pub(in crate::tyk) async fn ask(
        &self,
        cx: &mut RequestCx<'_>,
        place: &PerRequest<Known>,
    ) -> Result<Verdict, String> {
        let runner = self.runner.as_ref().ok_or("the script is not built")?;
        let (answer, beside) = match run(runner, &self.name, &Value::Object(Map::new()), cx, place).await {
            Ok(done) => done,
            Err(reason) => {
                tracing::warn!(middleware = %self.name, %reason, "a script failed: its request is refused");
                let answer = Answer { code: 500, text: FAILED.to_owned(), ..Answer::default() };
                return Ok(Verdict::Answer(answer));
            }
        };
        Ok(match (answer, beside.session) {
            (Some(answer), _) => Verdict::Answer(answer),
            (None, Some(session)) => Verdict::Caller(beside.token, session),
            (None, None) => Verdict::Nobody,
        })
    }
}
