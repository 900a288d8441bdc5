# Does what ports.py does, with the same words, where there is Perl and no Python. Perl 5.14, core modules only.
use strict;
use warnings;
use Errno qw(EINPROGRESS EWOULDBLOCK ECONNREFUSED ECONNRESET EHOSTUNREACH ENETUNREACH ETIMEDOUT EPERM EACCES);
use Fcntl;
use Socket qw(:DEFAULT getaddrinfo getnameinfo NI_NUMERICHOST NI_NUMERICSERV IPPROTO_TCP);
# A system with nothing but perl-base has no Time::HiRes: whole seconds will do there.
BEGIN { eval { require Time::HiRes; Time::HiRes->import("time"); 1 } or 1 }

my ($address, $token, $life) = @ARGV;
$SIG{ALRM} = 'DEFAULT';
$SIG{PIPE} = 'IGNORE';
alarm int $life;

sub say_line { syswrite STDOUT, "$_[0]\n" }

sub no_blocking { my $flags = fcntl $_[0], F_GETFL, 0; fcntl $_[0], F_SETFL, $flags | O_NONBLOCK }

my ($listener, $why) = (undef, '');
my ($problem, @found) = getaddrinfo($address, 0, { socktype => SOCK_STREAM, protocol => IPPROTO_TCP });
$why = "$problem" if $problem;
for my $one (@found) {
    my $sock;
    if (socket($sock, $one->{family}, $one->{socktype}, $one->{protocol}) && bind($sock, $one->{addr}) && listen($sock, 128)) {
        no_blocking($sock);
        $listener = $sock;
        last;
    }
    $why = "$!";
}
if ($listener) {
    my (undef, undef, $port) = getnameinfo(getsockname $listener, NI_NUMERICHOST | NI_NUMERICSERV);
    say_line("ready $port 0 1 perl");
} else {
    say_line("ready - 0 1 perl $why");
}

my (@attempts, $deadline);
my $unread = '';

sub finish {
    my ($attempt, $kind, $text) = @_;
    close $attempt->{sock} if $attempt->{sock};
    $attempt->{sock} = undef;
    $attempt->{over} = 1;
    say_line("result $attempt->{number} $kind" . (defined $text && length $text ? " $text" : ''));
}

sub fail {
    my ($attempt, $code) = @_;
    $! = $code;
    if ($code == ECONNREFUSED || $code == ECONNRESET) {
        return finish($attempt, 'refused') unless $attempt->{again};
        close $attempt->{sock} if $attempt->{sock};
        @$attempt{qw(sock connected heard)} = (undef, 0, '');
        $attempt->{not_before} = time + 0.1;
    } elsif ($code == EHOSTUNREACH || $code == ENETUNREACH) {
        finish($attempt, 'noroute', "$!");
    } elsif ($code == ETIMEDOUT) {
        finish($attempt, 'timeout');
    } elsif ($code == EPERM || $code == EACCES) {
        finish($attempt, 'denied', "$!");
    } else {
        finish($attempt, 'error', "$!");
    }
}

sub start {
    my $attempt = $_[0];
    my ($trouble, $where) =
        getaddrinfo($attempt->{address}, $attempt->{port}, { socktype => SOCK_STREAM, protocol => IPPROTO_TCP });
    return finish($attempt, 'error', "$trouble") if $trouble;
    my $sock;
    return fail($attempt, $! + 0) unless socket $sock, $where->{family}, $where->{socktype}, $where->{protocol};
    no_blocking($sock);
    $attempt->{sock} = $sock;
    return if connect $sock, $where->{addr};
    fail($attempt, $! + 0) unless $! == EINPROGRESS || $! == EWOULDBLOCK;
}

sub readable {
    my $attempt = $_[0];
    my $count = sysread $attempt->{sock}, my $data, 256;
    return $! == EWOULDBLOCK ? () : fail($attempt, $! + 0) unless defined $count;
    $attempt->{heard} .= $data;
    if (index($attempt->{heard}, $attempt->{token}) >= 0) {
        finish($attempt, 'ok');
    } elsif (!$count && $attempt->{again} && !length $attempt->{heard}) {
        fail($attempt, ECONNREFUSED);
    } elsif (!$count || length $attempt->{heard} > 512) {
        (my $shown = substr $attempt->{heard}, 0, 40) =~ s/[^ -~]/?/g;
        finish($attempt, 'wrong', "'$shown'");
    }
}

while (1) {
    if (defined $deadline) {
        my $now = time;
        for my $attempt (grep { !$_->{over} } @attempts) {
            if ($now >= $deadline) {
                finish($attempt, $attempt->{connected} ? 'mute' : $attempt->{not_before} ? 'refused' : 'timeout');
            } elsif (!$attempt->{sock} && $now >= $attempt->{not_before}) {
                start($attempt);
            } elsif ($attempt->{again} && $attempt->{connected} && $now > $attempt->{since} + 0.5) {
                fail($attempt, ECONNREFUSED);
            }
        }
        undef $deadline unless grep { !$_->{over} } @attempts;
    }
    my ($reading, $writing) = ('', '');
    vec($reading, 0, 1) = 1;
    vec($reading, fileno $listener, 1) = 1 if $listener;
    my @open = grep { $_->{sock} } @attempts;
    for (@open) {
        if ($_->{connected}) { vec($reading, fileno $_->{sock}, 1) = 1 } else { vec($writing, fileno $_->{sock}, 1) = 1 }
    }
    next if select($reading, $writing, undef, defined $deadline ? 0.05 : undef) < 0;
    if (vec $reading, 0, 1) {
        my $count = sysread STDIN, $unread, 65536, length $unread;
        exit 0 unless $count;
        while ($unread =~ s/^([^\n]*)\n//) {
            my @words = split ' ', $1;
            if (@words == 6 && $words[0] eq 'to') {
                push @attempts, {
                    number => $words[1], address => $words[2], port => $words[3], token => $words[4],
                    again => $words[5], connected => 0, heard => '', not_before => 0,
                };
            } elsif (@words == 2 && $words[0] eq 'go') {
                $deadline = time + $words[1];
            }
        }
    }
    if ($listener && vec $reading, fileno $listener, 1) {
        if (accept my $caller, $listener) {
            syswrite $caller, "ipexctl $token\n";
            close $caller;
        }
    }
    for my $attempt (@open) {
        next unless $attempt->{sock};
        if (!$attempt->{connected} && vec $writing, fileno $attempt->{sock}, 1) {
            my $code = unpack 'i', getsockopt($attempt->{sock}, SOL_SOCKET, SO_ERROR);
            if ($code) { fail($attempt, $code) } else { @$attempt{qw(connected since)} = (1, time) }
        } elsif ($attempt->{connected} && vec $reading, fileno $attempt->{sock}, 1) {
            readable($attempt);
        }
    }
}
