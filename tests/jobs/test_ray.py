"""Ray gives the same file as one process, whatever is killed meanwhile, and says in a line what is wrong."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from instant import InstantScore

from infodis.errors import InfodisError, InputError
from infodis.estimate import Request
from infodis.jobs import store as stores
from infodis.jobs.inputs import InputSpec
from infodis.jobs.run import InProcess, RunPlan, run

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
engine = pytest.importorskip("infodis.jobs.ray")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")  # of Ray about itself

TESTS = Path(__file__).parents[1]
LETTERS = "abcdefghijklmnopqrstuvwxyz "


@dataclasses.dataclass(frozen=True)
class Broken(InstantScore):
    """Has no model to load; `poison` kills who tries."""

    poison: bool = False

    def open(self):
        if self.poison:
            os._exit(9)
        raise InputError("There is no such model.")


@pytest.fixture(autouse=True)
def modules_of_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{TESTS / 'jobs'}")


def write_rows(path: Path, count: int, special: dict[int, object]) -> Path:
    with path.open("w") as file:
        for number in range(count):
            text = "".join(LETTERS[(7 * number + 3 * place) % 27] for place in range(4 + 3 * (number % 3)))
            file.write(json.dumps({"id": f"row {number}", "text": special.get(number, text)}) + "\n")
    return path


def plan(rows, out, executor, job=InstantScore, **options):
    made = job(request=Request(evaluations=8), **options)
    return RunPlan(
        out=out,
        job=made,
        input=InputSpec(str(rows), 7),
        executor=executor,
        threads=1,
    )


def nodes(*resources):
    return [{"Alive": True, "Resources": one} for one in resources] + [{"Alive": False, "Resources": {"CPU": 99.0}}]


def refused(monkeypatch, actors, *resources) -> str:
    monkeypatch.setattr(ray, "nodes", lambda: nodes(*resources))
    with pytest.raises(InputError) as caught:
        actors._check_room("the cluster")
    return str(caught.value)


def test_a_pool_that_takes_all_is_refused(monkeypatch):
    told = refused(monkeypatch, engine.RayActors(4), {"CPU": 2.0}, {"CPU": 2.0})
    assert "4 workers of 1 CPUs would take all 4 CPUs of the cluster" in told
    assert "at most 3 workers" in told
    assert "at most 7 workers" in refused(monkeypatch, engine.RayActors(8, cpus=0.5), {"CPU": 4.0})
    told = refused(monkeypatch, engine.RayActors(2, cpus=4), {"CPU": 4.0}, {"CPU": 3.0}, {"CPU": 3.0})
    assert "do not fit on the cluster, 1 do" in told
    told = refused(monkeypatch, engine.RayActors(5, gpus=0.5), {"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0})
    assert "do not fit on the cluster, 4 do" in told
    monkeypatch.setattr(ray, "nodes", lambda: nodes({"CPU": 3.0, "GPU": 0.2}))
    engine.RayActors(2)._check_room("the cluster")
    engine.RayActors(2, cpus=0.7, gpus=0.1)._check_room("the cluster")


def test_a_ray_of_ours_listens_on_loopback_only(monkeypatch):
    def init(_node_ip_address="127.0.0.1", **options):
        raise RuntimeError(f"would listen on {ray._private.services.resolve_ip_for_localhost(_node_ip_address)}")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(InputError, match=r"would listen on 127\.0\.0\.1"), engine.RayActors(1)._connected():
        pass
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeManagerAddress": "192.0.2.1"}])
    with pytest.raises(InfodisError, match=r"listens on 192\.0\.2\.1, where other machines reach it"):
        engine._check_loopback()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"workers": 0}, "at least one worker"),
        ({"workers": 1, "cpus": 1.5}, "whole number of CPUs"),
        ({"workers": 1, "cpus": 0.0}, "whole number of CPUs"),
        ({"workers": 1, "gpus": -1.0}, "whole number of GPUs"),
    ],
)
def test_wrong_shares_are_refused(wrong, told):
    with pytest.raises(InputError, match=told):
        engine.RayActors(**wrong)


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.1:9", "refused"), ("head", "An address is host:port"), ("ray://head:10001", "An address is host:port")],
)
def test_nobody_at_an_address_is_told_at_once(tmp_path, address, why):
    rows = write_rows(tmp_path / "rows.jsonl", 7, {})
    with pytest.raises(InputError, match=rf"No Ray could be joined at {address}: .*{why}"):
        run(plan(rows, tmp_path / "out.jsonl", engine.RayActors(2, address)))


def test_answers_cross_as_what_they_are():
    done = stores.Done(3, "ab", 5, 1, {"evaluations": 40.0, "standard_error": 0.1 + 0.2})
    assert engine._read(json.dumps(dataclasses.asdict(done))) == done
    for kind, error in (("told", InfodisError), ("disk", OSError), ("fault", RuntimeError)):
        with pytest.raises(error, match="what happened"):
            engine._read(json.dumps({"error": kind, "text": "what happened"}))


def test_a_worker_elsewhere_is_told(tmp_path, monkeypatch):
    """As on a node that does not share the file system."""
    monkeypatch.chdir(tmp_path)
    home = engine._Home(tmp_path, tmp_path / ".mark", "here", engine._versions())
    with pytest.raises(InputError, match="must be on a file system that all nodes share"):
        home.enter()
    home.mark.write_text("another disk")
    with pytest.raises(InputError, match="must be on a file system that all nodes share"):
        home.enter()
    home.mark.write_text("here")
    home.enter()
    with pytest.raises(InputError, match="Install the same on every node"):
        dataclasses.replace(home, versions=("0.0.0", "2.0")).enter()


@pytest.mark.slow
def test_the_same_file_though_a_worker_dies(tmp_path, monkeypatch, capfd):
    """In two windows, so that the second begins with what the first left over."""
    monkeypatch.setattr(engine, "WINDOW", 6)
    monkeypatch.setattr(engine, "WINDOW_PER_WORKER", 1)
    rows = write_rows(tmp_path / "rows.jsonl", 60, {17: 17, 30: "fatal"})
    met = tmp_path / "met"
    met.touch()
    run(plan(rows, tmp_path / "one.jsonl", InProcess(), met=str(met)))
    met.unlink()
    run(plan(rows, tmp_path / "two.jsonl", engine.RayActors(2), met=str(met)))
    assert met.exists()
    assert not ray.is_initialized()
    for name in ("{}.jsonl", "{}.jsonl.rejected.jsonl"):
        assert (tmp_path / name.format("one")).read_bytes() == (tmp_path / name.format("two")).read_bytes()
    assert not list(tmp_path.glob(".*"))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_errors_of_workers_are_one_line(tmp_path):
    """With a Ray that was there before, and stays."""
    rows = write_rows(tmp_path / "rows.jsonl", 20, {8: "fatal"})
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(InputError, match="would take all 3 CPUs of the Ray that is running"):
            run(plan(rows, tmp_path / "many.jsonl", engine.RayActors(3)))
        with pytest.raises(InfodisError, match=r"^There is no such model\.$"):
            run(plan(rows, tmp_path / "none.jsonl", engine.RayActors(2), job=Broken))
        with pytest.raises(InfodisError, match="3 workers died of shard 0"):
            run(plan(rows, tmp_path / "poison.jsonl", engine.RayActors(1), job=Broken, poison=True))
        with pytest.raises(InfodisError, match=r"No such file.*rerun the same command to resume\.$"):
            run(plan(rows, tmp_path / "disk.jsonl", engine.RayActors(1), met=""))
        assert ray.is_initialized()
    finally:
        ray.shutdown()


DRIVER = """
import signal
import sys
from pathlib import Path
from infodis.jobs.ray import RayActors
from infodis.jobs.run import run
from test_ray import plan

def watch(state):
    print(state.done, flush=True)

rows, out, address = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored
try:
    run(plan(rows, Path(out), RayActors(2, address or None)), watch)
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(rows, out, address="") -> subprocess.Popen:
    command = [sys.executable, "-c", DRIVER, str(rows), str(out), address]
    environment = {**os.environ, "RAY_TEST_RUN": str(out), "INSTANT_GATE": f"{out}.open"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment)


def wait_for(process: subprocess.Popen, rows: int) -> int:
    """Until so many rows are done."""
    for line in process.stdout:
        if int(line) >= rows:
            return int(line)
    raise AssertionError(f"The run ended with {ended(process)}.")


def ended(process: subprocess.Popen) -> int:
    """The exit code, when it is there."""
    process.communicate()
    return process.returncode


def offspring(out) -> list[str]:
    """Processes that were started on behalf of a run, by a variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"RAY_TEST_RUN={out}\0".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().rstrip(b"\0 ").replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def wait_until_gone(out, seconds: float, *, but: str = "nothing") -> None:
    end = time.monotonic() + seconds
    while left := [name for name in offspring(out) if but not in name]:
        assert time.monotonic() < end, left
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_killed_driver_leaves_nothing_and_goes_on(tmp_path):
    slow = dict.fromkeys(range(0, 140, 7), "slow and steady")
    rows = write_rows(tmp_path / "rows.jsonl", 140, {**slow, 100: "wait until it is the last"})
    run(plan(rows, tmp_path / "whole.jsonl", InProcess()))
    out = tmp_path / "out.jsonl"

    process = start(rows, out)
    before = wait_for(process, 21)
    process.kill()
    assert ended(process) == -signal.SIGKILL
    wait_until_gone(out, 15, but="Agent")  # Ray's own helpers wait a minute for it to come back

    process = start(rows, out)
    assert wait_for(process, 0) >= before
    more = wait_for(process, min(before + 14, 133))
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C on a terminal does
    assert ended(process) == 130
    wait_until_gone(out, 15 - (time.monotonic() - begin), but="Agent")

    Path(f"{out}.open").touch()
    process = start(rows, out)
    assert wait_for(process, 0) >= more
    wait_for(process, 140)
    assert ended(process) == 0
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not stores.work_directory(out).exists()
    wait_until_gone(out, 90)


@pytest.mark.slow
def test_a_cluster_is_joined_and_left_alone(tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", 70, dict.fromkeys(range(0, 70, 7), "slow and steady"))
    run(plan(rows, tmp_path / "whole.jsonl", InProcess()))
    out = tmp_path / "out.jsonl"
    cluster = ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        process = start(rows, out, cluster.address_info["gcs_address"])
        wait_for(process, 14)
        process.terminate()
        assert ended(process) == 130
        process = start(rows, out, cluster.address_info["gcs_address"])
        wait_for(process, 70)
        assert ended(process) == 0
        assert len([node for node in ray.nodes() if node["Alive"]]) == 1
    finally:
        ray.shutdown()
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.slow
def test_the_rest_of_a_cluster_does_the_work_of_a_lost_node(tmp_path):
    """Three workers on four CPUs; then there are two, and one worker finds no place until another has nothing to do."""
    tools = pytest.importorskip("ray.cluster_utils")
    rows = write_rows(tmp_path / "rows.jsonl", 140, dict.fromkeys(range(0, 140, 7), "slow and steady"))
    run(plan(rows, tmp_path / "whole.jsonl", InProcess()))
    small = {"num_cpus": 2, "object_store_memory": engine.OBJECT_STORE}
    cluster = tools.Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    lost = [cluster.add_node(**small)]
    cluster.wait_for_nodes()

    def watch(state):
        if state.done >= 35 and lost:
            cluster.remove_node(lost.pop(), allow_graceful=False)

    try:
        run(plan(rows, tmp_path / "out.jsonl", engine.RayActors(3, cluster.address)), watch)
    finally:
        cluster.shutdown()
    assert not lost
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
