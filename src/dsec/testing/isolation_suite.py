"""What a guest must not be able to do, and the limits it meets: for runtimes whose guests run on a real kernel.

Inherit next to `RuntimeSuite` (`dsec.testing.runtime_suite`). The image needs `perl`, whose `syscall` makes any system
call.
"""

from __future__ import annotations

import errno
import os
import signal

import anyio
import pytest

from dsec.base.errors import DsecError
from dsec.model.capability import Capability
from dsec.model.sandbox import QosClass, Resources
from dsec.runtimes.port import Instance, Runtime
from dsec.testing.runtime_suite import PATIENCE_S, Commands, MakeRequest, collect, read_until, until

_SYSTEM_CALLS = {
    "unshare(CLONE_NEWUSER)": (272, 0x10000000),
    "unshare(CLONE_NEWNS)": (272, 0x20000),
    "setns": (308, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0),
    "umount2": (166, 0, 0),
    "pivot_root": (155, 0, 0),
    "fsopen": (430, 0, 0),
    "open_tree": (428, 0, 0, 0),
    "move_mount": (429, 0, 0, 0, 0, 0),
    "mount_setattr": (442, 0, 0, 0, 0, 0),
    "keyctl": (250, 0, 0, 0, 0, 0),
    "add_key": (248, 0, 0, 0, 0, 0),
    "bpf": (321, 0, 0, 0),
    "perf_event_open": (298, 0, 0, 0, 0, 0),
    "userfaultfd": (323, 0),
    "io_uring_setup": (425, 0, 0),
    "io_uring_enter": (426, 0, 0, 0, 0, 0),
    "init_module": (175, 0, 0, 0),
    "kexec_load": (246, 0, 0, 0, 0),
    "reboot": (169, 0, 0, 0, 0),
    "swapon": (167, 0, 0),
    "clone(CLONE_NEWUSER)": (56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0),
}
"""Numbers of x86-64 (asm/unistd_64.h), with arguments that no kernel would take for anything else."""


class IsolationSuite:
    """See the module; the fixtures are those of `RuntimeSuite`."""

    # -- what a guest sees --------------------------------------------------------------------------------------------

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86-64")
    async def test_filter_refuses_what_widens_the_attack_surface(self, instance: Instance, commands: Commands) -> None:
        calls = "; ".join(
            f"$! = 0; $r = syscall({', '.join(map(str, call))}); print qq({name} $r ), $!+0, qq(\\n)"
            for name, call in _SYSTEM_CALLS.items()
        )
        out, err, _ = await collect(await instance.spawn(commands.run("perl", "-e", calls)))
        answers = {line.rsplit(" ", 2)[0]: line.rsplit(" ", 2)[1:] for line in out.decode().splitlines()}
        refused = (["-1", str(errno.EPERM)], ["-1", str(errno.ENOSYS)])
        allowed = {name: answer for name, answer in answers.items() if answer not in refused}
        assert not allowed, (allowed, err)
        assert answers.keys() == _SYSTEM_CALLS.keys()

    async def test_filter_sends_clone3_to_clone(self, instance: Instance, commands: Commands) -> None:
        script = "$r = syscall(435, 0, 0); print $r, ' ', $!+0"
        out, _, _ = await collect(await instance.spawn(commands.run("perl", "-e", script)))
        assert out.decode() == f"-1 {errno.ENOSYS}"

    async def test_status_shows_filter_no_new_privileges_and_bounded_capabilities(
        self, instance: Instance, commands: Commands
    ) -> None:
        for user, effective in (("0", "00000000800425fb"), ("1000", "0000000000000000")):
            out, _, _ = await collect(await instance.spawn(commands.run("cat", "/proc/self/status", user=user)))
            status = dict(line.split(":\t", 1) for line in out.decode().splitlines() if ":\t" in line)
            assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
            assert status["CapBnd"] == "00000000800425fb"
            assert status["CapEff"] == effective
            assert status["CapInh"] == status["CapAmb"] == "0000000000000000"

    async def test_command_holds_its_own_descriptors_only(self, instance: Instance, commands: Commands) -> None:
        script = "opendir(D, '/proc/self/fd'); print join(' ', sort { $a <=> $b } grep { /\\d/ } readdir D)"
        for options, expected in (
            ({}, "0 1 2"),
            ({"stdin": True}, "0 1 2"),
            ({"control_fd": True}, "0 1 2 3"),
            ({"durable": True}, "0 1 2"),
        ):
            process = await instance.spawn(commands.run("perl", "-e", script, **options))
            out, _, _ = await collect(process)
            # The last one is the listing's own.
            assert out.decode().split()[:-1] == expected.split(), options

    async def test_descriptors_name_no_path_of_the_host(self, instance: Instance, commands: Commands) -> None:
        script = (
            "for my $p (1, $$) { for my $fd (0..20) { my $l = readlink qq(/proc/$p/fd/$fd); print qq($l\\n) if $l } }"
        )
        for durable in (False, True):
            out, _, _ = await collect(await instance.spawn(commands.run("perl", "-e", script, durable=durable)))
            for line in out.decode().splitlines():
                assert line.startswith(("pipe:[", "/memfd:", "/dev/null", "/proc/", "anon_inode:")), line

    async def test_device_of_the_host_stays_the_hosts(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        """A guest that owned the host's /dev/null could take it from everybody."""
        instance = await runtime.launch(make_request())
        script = """
            for my $path (glob('/proc/1/fd/*'), glob('/dev/*'), map { "/proc/self/fd/$_" } 0..9) {
                my @s = stat($path);
                print "$path\\n" if @s && ($s[2] & 0170000) == 0020000 && chmod($s[2] & 07777, $path);
            }"""
        for options in ({}, {"stdin": True}, {"durable": True}):
            out, _, _ = await collect(await instance.spawn(commands.run("perl", "-e", script, **options)))
            assert out == b""
        await instance.terminate()

    async def test_masked_paths_are_empty_and_kernel_settings_read_only(
        self, instance: Instance, commands: Commands
    ) -> None:
        script = """
            for p in /proc/kcore /proc/keys /proc/timer_list /proc/interrupts; do [ ! -e $p ] || head -c 1 $p; done
            for d in /proc/acpi /sys/firmware; do [ ! -d $d ] || ls $d; done
            for p in /proc/sys/kernel/hostname /proc/sysrq-trigger /proc/sys/vm/overcommit_memory; do
                (echo x >$p) 2>/dev/null && echo wrote $p
            done; true"""
        assert (await collect(await instance.spawn(commands.sh(script))))[0] == b""

    async def test_network_is_a_loopback_that_is_up(self, instance: Instance, commands: Commands) -> None:
        script = "sed -n 's/^ *\\([a-z0-9]*\\):.*/\\1/p' /proc/net/dev; cat /sys/class/net/lo/flags"
        out, _, _ = await collect(await instance.spawn(commands.sh(script)))
        *names, flags = out.decode().split()
        assert (names, int(flags, 16) & 1) == (["lo"], 1)

    async def test_only_the_init_of_ours_is_inside(self, instance: Instance, commands: Commands) -> None:
        script = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"
        out, _, _ = await collect(await instance.spawn(commands.sh(script)))
        lines = [line.strip() for line in out.decode().splitlines() if line.strip()]
        assert [line for line in lines if not line.startswith(("sh ", "tr "))] == ["/dev/.init -P"]

    async def test_control_groups_cannot_be_written(self, instance: Instance, commands: Commands) -> None:
        script = "find / -name cgroup.procs 2>/dev/null; grep ' cgroup' /proc/mounts"
        assert (await collect(await instance.spawn(commands.sh(script))))[0] == b""

    # -- limits -------------------------------------------------------------------------------------------------------

    @pytest.mark.needs_capability(Capability.MEMORY_LIMIT)
    async def test_memory_limit_kills_and_is_reported(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(resources=Resources(memory_bytes=64 << 20, swap_bytes=0)))
        script = "my @a; while (1) { push @a, 'x' x 1000000 . scalar @a }"
        for durable in (False, True):
            process = await instance.spawn(commands.run("perl", "-e", script, durable=durable))
            _, _, status = await collect(process)
            assert (status.signal, status.oom_killed) == (signal.SIGKILL, True)
        assert ((await instance.statistics()).oom_kills or 0) >= 2
        out, _, status = await collect(await instance.spawn(commands.sh("echo alive")))
        assert (out, status.oom_killed) == (b"alive\n", False)
        await instance.terminate()

    @pytest.mark.needs_capability(Capability.MEMORY_LIMIT)
    async def test_memory_limit_counts_files_in_memory(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(resources=Resources(memory_bytes=32 << 20, swap_bytes=0)))
        _, _, status = await collect(await instance.spawn(commands.sh("head -c 60000000 /dev/zero >/dev/shm/x")))
        assert status.exit_code != 0
        await instance.terminate()

    @pytest.mark.needs_capability(Capability.PIDS_LIMIT)
    @pytest.mark.leaves_children
    async def test_process_limit_is_met_inside_and_by_starts(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(resources=Resources(pids=12)))
        full = await instance.spawn(commands.sh("i=0; while [ $i -lt 30 ]; do sleep 1000 & i=$((i+1)); done; echo all"))
        out, err, _ = await collect(full)
        assert b"all" not in out
        assert err
        with pytest.raises(DsecError) as caught:
            await collect(await instance.spawn(commands.run("true")))
        assert caught.value.code == "sandbox_process_limit", str(caught.value)
        await instance.terminate()

    @pytest.mark.needs_capability(Capability.CPU_LIMIT)
    async def test_processor_quota_is_enforced(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(resources=Resources(cpu_millis=100)))
        process = await instance.spawn(commands.sh("while :; do :; done"))
        began = anyio.current_time()

        async def has_used() -> bool:
            return ((await instance.statistics()).cpu_s or 0.0) >= 0.25

        await until(has_used)
        # A tenth of a processor needs 2.5 s for this; a whole one 0.25 s.
        assert anyio.current_time() - began > 1.0
        await process.kill()
        await instance.terminate()

    async def test_open_file_limit_is_set(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(resources=Resources(open_files=77)))
        out, _, _ = await collect(await instance.spawn(commands.sh("ulimit -Sn; ulimit -Hn; ulimit -c")))
        assert out == b"77\n77\n0\n"
        await instance.terminate()

    async def test_best_effort_instance_runs(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(qos=QosClass.BEST_EFFORT))
        assert (await collect(await instance.spawn(commands.sh("echo hi"))))[0] == b"hi\n"
        await instance.terminate()

    # -- hostile guests -----------------------------------------------------------------------------------------------

    @pytest.mark.leaves_children
    async def test_thousands_of_streams_left_open_do_not_exhaust_the_caller(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(resources=Resources(pids=1000, memory_bytes=1 << 30)))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(160):
            await collect(await instance.spawn(commands.sh("sleep 1000 & exit 0")))
        assert len(os.listdir("/proc/self/fd")) - before <= 256 + 8
        await instance.terminate()

    @pytest.mark.leaves_children
    async def test_groups_of_children_that_ended_later_are_removed(
        self, instance: Instance, commands: Commands
    ) -> None:
        for _ in range(3):
            await collect(await instance.spawn(commands.sh("sleep 1000 & exit 0")))
        await collect(await instance.spawn(commands.sh("kill -9 $(cat /proc/[0-9]*/stat | sed -n 's/ (sleep).*//p')")))
        groups = getattr(instance, "command_groups", None)
        if groups is None:
            pytest.skip("this runtime shows no groups")
        with anyio.fail_after(PATIENCE_S):
            while len(groups()) > 1:
                await collect(await instance.spawn(commands.run("true")))

    async def test_one_byte_writes_cost_no_more_memory_than_long_ones(
        self, instance: Instance, commands: Commands
    ) -> None:
        process = await instance.spawn(commands.run("perl", "-e", "$|=1; print 'x' while 1"))
        seen = len(await read_until(process, b"x"))
        await process.kill()
        out, _, _ = await collect(process)
        assert len(out) + seen < 4 << 20

    async def test_init_killed_from_the_host_is_noticed(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request())
        process = await instance.spawn(commands.sh("echo ready; exec sleep 1000"))
        await read_until(process, b"ready\n")
        pid = getattr(instance, "init_pid", None)
        if pid is None:
            pytest.skip("this runtime has no init process on the host")
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(PATIENCE_S):
            assert await instance.wait_exited()
            await process.wait()
        with pytest.raises(DsecError):
            await collect(await instance.spawn(commands.run("true")))
        await process.close()
        await runtime.close()
        await runtime.open()
        assert await runtime.adopt(instance.instance_id) is None
        await runtime.discard(instance.instance_id)
        assert instance.instance_id not in await runtime.instances()
