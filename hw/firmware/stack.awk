# Maximum stack depth of a program, from gcc's -fcallgraph-info=su (VCG). Prints bytes.
#
#     awk -v entry=main -v interrupts="onrig_on_usb onrig_on_sample,onrig_on_poll" -v frame=32 -v library=640 -f stack.awk *.ci
#
# interrupts: one word per priority, with its handlers; the priorities add up, with a frame each. Library functions have
# no figure and count as library. A call through a pointer counts as the deepest of the port's functions.
function base(title) { sub(/.*:/, "", title); return title }
function deepest(title,    at, n, targets, i, below, most) {
    if (title in on_path) return 0
    if (title == "__indirect_call") {
        for (at in size) if (base(at) in through_pointers) { below = deepest(at); if (below > most) most = below }
        return most
    }
    if (!(title in size)) return library
    on_path[title] = 1
    n = split(calls[title], targets, "\n")
    for (i = 1; i <= n; i++) { below = deepest(targets[i]); if (below > most) most = below }
    delete on_path[title]
    return size[title] + most
}
BEGIN {
    n = split("send sense actuate reset onrig_usb_send onrig_board_send onrig_line_write " \
              "pendulum_acceleration magman_acceleration wrap meet_walls", names, " ")
    for (i = 1; i <= n; i++) through_pointers[names[i]] = 1
}
/^node:/ && / bytes \(/ {
    split($0, quoted, "\"")
    match(quoted[4], /[0-9]+ bytes/)
    size[quoted[2]] = substr(quoted[4], RSTART, RLENGTH) + 0
}
/^edge:/ {
    split($0, quoted, "\"")
    calls[quoted[2]] = calls[quoted[2]] (calls[quoted[2]] == "" ? "" : "\n") quoted[4]
}
END {
    total = deepest(entry)
    n = split(interrupts, levels, " ")
    for (i = 1; i <= n; i++) {
        most = 0
        m = split(levels[i], handlers, ",")
        for (j = 1; j <= m; j++) { below = deepest(handlers[j]); if (below > most) most = below }
        total += frame + most
    }
    print total
}
