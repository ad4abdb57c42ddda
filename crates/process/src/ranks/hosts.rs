//! On which hosts ranks run, and how they are started there: by a shell, over `ssh` where the host is another one; those of MPI by `mpirun`, which goes the same way.

use super::{
    host::{Error, Options, failed},
    runtime::{ABANDONED, ADDRESS, RANK, TOKEN},
};
use std::{
    env,
    fmt::Write as _,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _, UdpSocket},
    process::{Child, Command, ExitStatus, Stdio},
    str::FromStr,
};

/// This host, without `ssh`.
const HERE: &str = "localhost";
/// Where `ssh` listens, for the system to find the way there.
const SSH_PORT: u16 = 22;
/// The exit status of `ssh` when it does not get there, or is cut off.
const CUT_OFF: i32 = 255;

/// A host that ranks run on: `NAME`, or `NAME:SHARE` for so many times as many ranks as one without. The name is what `ssh` gets; `localhost` is this host, without `ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// What `ssh` gets: `name` or `user@name`.
    pub name: String,
    /// Its part of the ranks, in proportion to those of the others.
    pub share: u32,
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, share) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, None),
            Some((name, share)) => (name, Some(share.strip_prefix(':').unwrap_or_default())),
            None => match text.split_once(':') {
                // An address of IPv6 has more than one colon.
                Some((name, share)) if !share.contains(':') => (name, Some(share)),
                _ => (text, None),
            },
        };
        let is_name = !name.is_empty() && !name.starts_with('-') && !name.contains(|c: char| c.is_whitespace() || c.is_control());
        let share = share.map_or(Some(1), |share| share.parse().ok().filter(|share| *share > 0));
        match (is_name, share) {
            (true, Some(share)) => Ok(Self { name: name.to_owned(), share }),
            _ => Err(format!("\"{text}\" is no host for ranks; write NAME, or NAME:SHARE for so many times as many ranks")),
        }
    }
}

/// The hosts of a run, and what became of them.
#[derive(Debug)]
pub(super) struct Hosts {
    all: Vec<Host>,
    lost: Vec<bool>,
    /// A rank has come from there.
    known: Vec<bool>,
    /// The host of each rank.
    places: Vec<usize>,
}

impl Hosts {
    pub fn new(all: &[Host]) -> Self {
        Self { all: all.to_vec(), lost: vec![false; all.len()], known: vec![false; all.len()], places: Vec::new() }
    }

    /// Goes to each host that is not lost, and returns what is to be said if it does not get to some of them.
    pub fn look(&mut self) -> Option<String> {
        let there = (0..self.all.len()).filter(|host| !self.lost[*host] && self.all[*host].name != HERE);
        let mut looks: Vec<_> = there.map(|host| (host, shell(&self.all[host].name, ":").stdin(Stdio::null()).spawn())).collect();
        let mut ended = Vec::new();
        for (host, look) in &mut looks {
            let status = look.as_mut().map_err(|error| error.to_string()).and_then(|look| look.wait().map_err(|error| error.to_string()));
            match status {
                Ok(status) if status.success() => {}
                Ok(status) => ended.push((*host, format!("what leads there ended with {status}"))),
                Err(why) => ended.push((*host, format!("{} does not start: {why}", ssh()))),
            }
        }
        let said: Vec<_> = ended.into_iter().map(|(host, why)| self.lose(host, &why)).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Shares ranks out among the hosts that are not lost, in their order: neighbours are near each other. Without hosts all have none.
    pub fn place(&mut self, ranks: usize) {
        if self.all.is_empty() {
            return;
        }
        let shares = || self.all.iter().zip(&self.lost).map(|(host, lost)| if *lost { 0 } else { u64::from(host.share) });
        let sum: u64 = shares().sum();
        let host_of = |rank: usize| {
            let at = rank as u64 * sum / ranks as u64;
            let ends = shares().scan(0, |end, share| {
                *end += share;
                Some(*end)
            });
            ends.take_while(|end| *end <= at).count()
        };
        self.places = (0..ranks).map(host_of).collect();
    }

    /// The hosts that have ranks, in their order, with how many.
    pub fn shares(&self) -> Vec<(&str, usize)> {
        let ranks = |at| self.places.iter().filter(|place| **place == at).count();
        self.all.iter().enumerate().map(|(at, host)| (host.name.as_str(), ranks(at))).filter(|(_, ranks)| *ranks > 0).collect()
    }

    /// The host of a rank.
    pub fn of(&self, rank: usize) -> usize {
        self.places[rank]
    }

    /// A rank has come.
    pub fn came(&mut self, rank: usize) {
        // Without hosts it has no place.
        if let Some(host) = self.places.get(rank) {
            self.known[*host] = true;
        }
    }

    /// What began its ranks has ended there. A host that is cut off is lost, and so is one that no rank ever came from: it lacks the program, or `ssh` has its own way to fail. Returns what is to
    /// be said of it.
    pub fn ended(&mut self, host: usize, status: ExitStatus) -> String {
        let why = format!("what began its ranks ended with {status}");
        if status.code() == Some(CUT_OFF) || !self.known[host] {
            return self.lose(host, &why);
        }
        format!("host {}: {why}", self.all[host].name)
    }

    /// No rank is started there any more, as long as another host is left. Returns what is to be said of it.
    pub fn lose(&mut self, host: usize, why: &str) -> String {
        let name = &self.all[host].name;
        self.lost[host] = true;
        if !self.lost.contains(&false) {
            if self.are_unknown() {
                return format!("host {name} is lost ({why})");
            }
            self.lost.fill(false);
            return format!("no host is left: {name} is lost, too ({why}). All are tried again");
        }
        format!("host {name} is lost ({why}), and others take its ranks")
    }

    /// No rank ever came from any of them.
    fn are_unknown(&self) -> bool {
        !self.known.contains(&true)
    }

    /// All are lost, and trying them again would not mend it.
    pub fn are_hopeless(&self) -> bool {
        !self.all.is_empty() && !self.lost.contains(&false)
    }

    /// What there is to look at, if no rank ever came from any of them.
    pub fn advice(&self, why: &str) -> Option<Error> {
        let advice = || {
            format!(
                "no rank ever came from any host. The last: {why}. See what was printed before; then, for each host, whether `{} -o BatchMode=yes HOST true` succeeds (is it the right name, is a key taken there without a question? FERMATA_SSH says what is called), and whether the program is there under the same name and reaches this host (--listen)",
                ssh()
            )
        };
        (!self.all.is_empty() && self.are_unknown()).then(|| Error::Refused(advice()))
    }

    /// The address at which ranks on all hosts find who listens here.
    pub fn address(&self, options: &Options) -> Result<IpAddr, Error> {
        if let Some(address) = options.listen {
            return Ok(address);
        }
        let Some(other) = self.all.iter().find(|host| host.name != HERE) else { return Ok(Ipv4Addr::LOCALHOST.into()) };
        reached_from(&other.name).map_err(|error| {
            let name = &other.name;
            Error::Refused(format!(
                "it cannot be found out at which address {name} finds this host ({error}): if the name is right, say it with --listen ADDRESS"
            ))
        })
    }

    /// Starts all ranks of a host: where, and what ends when they have ended. Several shells, one on each host.
    pub fn start(&self, options: &Options, address: &str, token: &str) -> Result<Vec<(usize, Child)>, Error> {
        let mut started = Vec::new();
        for (at, host) in self.all.iter().enumerate() {
            let ranks: Vec<_> = (0..options.ranks).filter(|rank| self.places[*rank] == at).collect();
            if ranks.is_empty() {
                continue;
            }
            let script = script(options, &host.name, address, &ranks)?;
            let mut command = shell(&host.name, &script);
            let action = format!("start {}", command.get_program().display());
            let mut child = command.stdin(Stdio::piped()).spawn().map_err(failed(action))?;
            // Not among its words, where everybody on its host could read it. One that has ended already is seen later.
            let _ = writeln!(child.stdin.take().expect("it is piped"), "{token}");
            started.push((at, child));
        }
        Ok(started)
    }
}

/// The address by which this host reaches another.
fn reached_from(name: &str) -> io::Result<IpAddr> {
    let host = name.rsplit_once('@').map_or(name, |(_, host)| host);
    let mut last = io::Error::other("it has no address");
    for there in (host, SSH_PORT).to_socket_addrs()? {
        let any: IpAddr = if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Nothing is sent: the system looks where it would go.
        let found = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(there)?;
            socket.local_addr()
        });
        match found {
            Ok(address) => return Ok(address.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What leads to other hosts.
pub(super) fn ssh() -> String {
    env::var("FERMATA_SSH").unwrap_or_else(|_| "ssh".to_owned())
}

/// A shell on a host that runs this script.
fn shell(host: &str, script: &str) -> Command {
    if host == HERE {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        return command;
    }
    let mut command = Command::new(ssh());
    command.args(["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ConnectTimeout=20"]);
    // Whatever shell people have there gets one word for `sh`.
    command.arg(host).arg(format!("exec sh -c {}", quoted(script)));
    command
}

/// What begins these ranks on a host, with the token from its standard input, and ends when they have ended.
fn script(options: &Options, host: &str, address: &str, ranks: &[usize]) -> Result<String, Error> {
    let program = options.program.to_str().ok_or_else(|| Error::Refused("the program's name is no text".into()))?;
    let mut script = format!("IFS= read -r {TOKEN} || exit {CUT_OFF}\nexport {TOKEN} {ADDRESS}={}\n", quoted(address));
    for (name, value) in &options.environment {
        _ = writeln!(script, "export {name}={}", quoted(value));
    }
    // The directory that we are in, if there is one of this name.
    if let Some(directory) = env::current_dir().ok().as_deref().and_then(|directory| directory.to_str()) {
        _ = writeln!(script, "cd {} 2>/dev/null", quoted(directory));
    }
    let words: Vec<_> = std::iter::once(program).chain(options.args.iter().map(String::as_str)).map(quoted).collect();
    let ranks: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    // Ranks that end because all go back have nothing to say of themselves.
    _ = write!(
        script,
        "for rank in {}; do {{\n{RANK}=$rank {} </dev/null\nstatus=$?\ncase $status in 0|{ABANDONED}) ;; *) echo \"rank $rank on \"{}\" ended with status $status\" >&2 ;; esac\n}} & done\nwait\n",
        ranks.join(" "),
        words.join(" "),
        quoted(host)
    );
    Ok(script)
}

/// One word of a shell.
fn quoted(word: impl AsRef<str>) -> String {
    format!("'{}'", word.as_ref().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(texts: &[&str]) -> Vec<Host> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn names_and_shares() {
        for (text, name, share) in
            [("a", "a", 1), ("me@a:3", "me@a", 3), ("fe80::1", "fe80::1", 1), ("[fe80::1]:2", "fe80::1", 2), ("[a]", "a", 1)]
        {
            assert_eq!(text.parse(), Ok(Host { name: name.into(), share }), "{text}");
        }
        for text in ["", ":2", "a:0", "a:", "a:many", "-oProxyCommand=x", "a b", "[a]2"] {
            assert!(text.parse::<Host>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranks_are_shared_out_among_those_that_are_left() {
        let all = hosts(&["a", "b:2", "c"]);
        let mut hosts = Hosts::new(&all);
        let placed = |hosts: &mut Hosts, ranks| {
            hosts.place(ranks);
            hosts.places.clone()
        };
        assert_eq!(placed(&mut hosts, 8), [0, 0, 1, 1, 1, 1, 2, 2]);
        assert_eq!(placed(&mut hosts, 2), [0, 1]);
        assert_eq!(hosts.shares(), [("a", 1), ("b", 1)]);
        hosts.came(0);
        assert!(hosts.lose(0, "why").contains("a is lost (why)"));
        assert_eq!(placed(&mut hosts, 6), [1, 1, 1, 1, 2, 2]);
        hosts.lose(1, "why");
        assert_eq!(placed(&mut hosts, 2), [2, 2]);
        assert!(hosts.lose(2, "why").contains("no host is left"));
        assert_eq!(placed(&mut hosts, 4), [0, 1, 1, 2]);
    }

    #[test]
    fn hosts_that_no_rank_ever_came_from_are_tried_once() {
        let (all, ended) = (hosts(&["a", "b"]), ExitStatus::default());
        let mut hosts = Hosts::new(&all);
        hosts.place(2);
        assert!(hosts.ended(0, ended).contains("a is lost") && !hosts.are_hopeless());
        hosts.place(2);
        let why = hosts.ended(1, ended);
        assert!(hosts.are_hopeless());
        assert!(hosts.advice(&why).unwrap().to_string().contains("b is lost (what began its ranks ended with exit status: 0). See"));

        let mut hosts = Hosts::new(&all);
        hosts.place(2);
        hosts.came(1);
        assert!(hosts.ended(1, ended).starts_with("host b: ") && hosts.advice("why").is_none());
        (0..2).for_each(|host| _ = hosts.lose(host, "why"));
        assert!(!hosts.are_hopeless());

        let mut none = Hosts::new(&[]);
        none.came(0);
        assert!(!none.are_hopeless() && none.advice("why").is_none());
    }

    #[test]
    fn words_arrive_as_they_are() {
        let mut options = Options::new("words", 1, "printf");
        options.args = vec!["<%s>".into(), "it's".into(), "$HOME `x`".into(), String::new()];
        options.environment = vec![("GREETING".into(), "a 'b'".into())];
        let script = format!("{}echo \"$GREETING $FERMATA_RANKS_TOKEN\"", script(&options, "h", "tcp:x", &[0]).unwrap());
        let mut child = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "secret").unwrap();
        let said = child.wait_with_output().unwrap().stdout;
        assert_eq!(String::from_utf8_lossy(&said), "<it's><$HOME `x`><>a 'b' secret\n");
    }
}
