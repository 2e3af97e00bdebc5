"""A real SLURM of a few emulated nodes on this host: munged, slurmctld and a slurmd a node, without systemd or cgroups.

Everything is in a directory and on ports of its own, and SLURM's commands find it by ``SLURM_CONF`` alone, so that a SLURM that the host
already has is not disturbed. By hand, until interrupted: ``python tests/slurm/cluster.py [NODES [CORES]]``.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun", "sinfo")
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

# TmpFS: where pmix keeps a node's socket. cred_expire: a requeued job waits until its old credential has expired, by default two minutes.
CONFIG = """\
ClusterName=fedmavg
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={here}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool-%n
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd-%n.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/slurmd-%n.log
TmpFS={here}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=5
MinJobAge=3600
SchedulerParameters=sched_interval=2,bf_interval=5
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 State=UP
"""


def missing():
    """Why there can be no cluster here; empty if there can."""
    if os.getuid() != 0:
        return "the daemons of SLURM need root"
    if lacking := [name for name in PROGRAMS if not shutil.which(name, path=SEARCHED)]:
        return f"no {', '.join(lacking)}; Debian: apt install slurmctld slurmd slurm-client munge"
    return ""


class Cluster:
    """Emulated nodes n1, n2, ...: up on entry, gone with all jobs on exit.

    Parameters
    ----------
    nodes, cores : int
        Cores are those of a node, whatever the host has.

    Attributes
    ----------
    here : Path
        Configuration, logs and state.
    variables : dict of str to str
        What SLURM's commands need in their environment.
    """

    def __init__(self, nodes=2, cores=2):
        self.n_nodes, self.cores = nodes, cores
        self.variables = {}
        self._daemons = []

    def __enter__(self):
        self.here = Path(tempfile.mkdtemp(prefix="slurm-"))  # a short path: sockets' names hold 107 bytes
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        self.here.chmod(0o755)
        host, ports = socket.gethostname().partition(".")[0], free_ports(1 + self.n_nodes)
        nodes = [
            f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[i]} CPUs={self.cores} RealMemory=1000 State=UNKNOWN"
            for i in range(1, self.n_nodes + 1)
        ]
        config, key, munge = self.here / "slurm.conf", self.here / "munge.key", self.here / "munge"
        config.write_text(CONFIG.format(host=host, ports=ports, here=self.here, nodes="\n".join(nodes)))
        self.variables = {"SLURM_CONF": str(config), "PATH": SEARCHED}
        (self.here / "state").mkdir()
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        files = {
            "key-file": key,
            "socket": f"{munge}.socket",
            "pid-file": f"{munge}.pid",
            "log-file": f"{munge}.log",
            "seed-file": f"{munge}.seed",
        }
        self._daemon("munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items()))
        until(lambda: Path(f"{munge}.socket").exists(), 10, "munged made no socket")
        self._daemon("slurmctld", "-D", "-f", config)
        for i in range(1, self.n_nodes + 1):
            for folder in ("spool", "tmp"):
                (self.here / f"{folder}-n{i}").mkdir()
            self._daemon("slurmd", "-D", "-f", config, "-N", f"n{i}")
        until(lambda: self._idle() == self.n_nodes, 60, f"the nodes did not come up; see {self.here}/*.log")

    def _daemon(self, name, *arguments):
        log = open(self.here / f"{name}.out", "ab")  # noqa: SIM115, the daemon's
        with log:
            command = [shutil.which(name, path=SEARCHED), *map(str, arguments)]
            process = subprocess.Popen(
                command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._daemons.append(process)

    def _idle(self):
        done = subprocess.run(["sinfo", "-hN", "-o", "%t"], env=self.environment(), capture_output=True, text=True)
        return done.stdout.split().count("idle")

    def environment(self):
        """This process's environment, for this cluster's commands and daemons."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "PMI_", "OMPI_"))}
        return kept | self.variables

    def ask(self, *command, text=None):
        """Standard output of a command that must succeed."""
        done = subprocess.run(command, env=self.environment(), input=text, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise AssertionError(f"{command} ended with status {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def lacks(self, plugin):
        """Why ``srun --mpi`` can't take this plugin; empty if it can."""
        command = ["srun", f"--mpi={plugin}", "true"]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=60)
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return f"srun --mpi={plugin}: {lines[0]}; Debian: apt install libpmix-dev" if done.returncode else ""

    def job(self, number):
        """What ``scontrol show job`` tells: dict of str to str."""
        words = self.ask("scontrol", "--oneliner", "show", "job", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number, seconds=120):
        """The job, once it has ended."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        until(lambda: self.job(number)["JobState"] in ended, seconds, lambda: f"job {number} has not ended: {self.job(number)}")
        return self.job(number)

    def __exit__(self, *_):
        if len(self._daemons) > 1 and self._daemons[1].poll() is None:
            with contextlib.suppress(subprocess.SubprocessError, AssertionError):  # jobs first, while their daemons can end them
                self.ask("scancel", "--user=root")
                until(lambda: not self.ask("squeue", "-h"), 15, "jobs remain")
        for process in reversed(self._daemons):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._daemons):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.here, ignore_errors=True)


def until(true, seconds, words):
    """Wait until ``true()``, or fail with ``words``."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(words() if callable(words) else words)
        time.sleep(0.2)


def free_ports(count):
    """Ports on which nobody listens now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def main(arguments):
    if reason := missing():
        sys.exit(reason)
    with Cluster(*map(int, arguments)) as cluster:
        print(f"export SLURM_CONF={cluster.variables['SLURM_CONF']}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    main(sys.argv[1:])
