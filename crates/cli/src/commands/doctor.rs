//! `fermata doctor`: what this host can and cannot do.

use super::{Context, Result};
use crate::{
    out::{Paint, Style},
    text,
};
use clap::Args;
use fermata_api::{
    doctor, local,
    values::{Finding, Verdict},
};

/// Tell what this host can and cannot do, and how to mend it
///
/// Looks at the kernel, QEMU, KVM, the run directory and the store. What can be tried is tried. Exits with 1 if something is missing without which nothing
/// works.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata doctor
  fermata doctor --json | jq '.[] | select(.verdict != \"good\")'")]
pub struct Doctor {}

impl Doctor {
    pub fn run(self, context: &Context) -> Result {
        let findings = doctor::examine(&local::store_path(context.global.store.clone()));
        context.out.answer(&findings, |style| text(&findings, style))?;
        Ok(u8::from(findings.iter().any(|finding| finding.verdict == Verdict::Bad)))
    }
}

fn text(findings: &[Finding], style: &Style) -> String {
    let widest = findings.iter().map(|finding| text::width(&finding.what)).max().unwrap_or(0);
    let indent = " ".repeat("limited".len() + widest + 4);
    let mut report = String::new();
    for finding in findings {
        let (paint, word) = match finding.verdict {
            Verdict::Good => (Paint::Good, "good   "),
            Verdict::Limited => (Paint::Warning, "limited"),
            Verdict::Bad => (Paint::Bad, "bad    "),
            Verdict::Unneeded => (Paint::Dim, "-      "),
        };
        let padding = " ".repeat(widest - text::width(&finding.what));
        report += &format!("{}  {}{padding}  {}\n", style.paint(paint, word), finding.what, text::harmless(&finding.found));
        if let Some(mend) = &finding.mend {
            report += &format!("{indent}{} {}\n", style.paint(Paint::Dim, "mend:"), text::harmless(mend));
        }
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    report
        + match (count(Verdict::Bad), count(Verdict::Limited)) {
            (0, 0) => "This host can do everything.\n",
            (0, _) => "This host can do what is needed, with limits.\n",
            _ => "Fermata cannot work here before what is bad is mended.\n",
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_with_their_mending() {
        let finding = |what: &str, verdict, mend: Option<&str>| Finding {
            what: what.into(),
            verdict,
            found: "as found".into(),
            mend: mend.map(str::to_owned),
        };
        let findings = [finding("Linux", Verdict::Good, None), finding("acceleration", Verdict::Bad, Some("do this"))];
        let expected = "\
good     Linux         as found
bad      acceleration  as found
                       mend: do this
Fermata cannot work here before what is bad is mended.
";
        assert_eq!(text(&findings, &Style::default()), expected);
        assert!(text(&findings[..1], &Style::default()).ends_with("everything.\n"));
    }
}
