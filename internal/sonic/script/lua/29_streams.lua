
-- A stream is shipped as it is after the write, with its consumer groups: an entry costs as much as
-- the whole stream.
each({{'XADD', false}, {'XDEL', true}, {'XTRIM', true}, {'XSETID', false}}, function(command, frees)
	write(command, function(args, db)
		local key = args[2]
		if policy_of(key) == 'c' then return counter_refusal(command) end
		local reply = run(command, args)
		if not reply or reply == 0 or failed(reply) then return reply end
		return reply, dump_state(db, key)
	end, {frees = frees})
end)
