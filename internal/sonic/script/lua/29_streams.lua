
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- A stream that was there before is shipped as the operation that changed it, as a list is. So other zones
-- keep their consumer groups.

-- trimmed returns the arguments by which a stream is trimmed to what was left in it: which entries ~ leaves depends
-- on how each Redis keeps them.
local function trimmed(key)
	local first = call('XRANGE', key, '-', '+', 'COUNT', '1')[1]
	if not first then return 'MAXLEN', '=', '0' end
	return 'MINID', '=', first[1]
end

-- id_at returns the index of the id among the arguments of XADD, and whether it may trim.
local function id_at(args)
	local i, trims = 3, false
	while true do
		local option = string.upper(args[i])
		if option == 'MAXLEN' or option == 'MINID' then
			trims = true
			i = i + ((args[i + 1] == '=' or args[i + 1] == '~') and 3 or 2)
		elseif option == 'LIMIT' then
			i = i + 2
		elseif option == 'NOMKSTREAM' then
			i = i + 1
		else
			return i, trims
		end
	end
end

write('XADD', function(c, args, key)
	local before = try('XLEN', key)
	local made = before == 0 and call('EXISTS', key) == 0
	local reply = run('XADD', args)
	if not reply or failed(reply) then return reply end
	if made then return reply, dump_state(c.db, key) end
	local at, trims = id_at(args)
	local words = {}
	if trims and call('XLEN', key) <= before then words = {trimmed(key)} end
	words[#words + 1] = reply
	for i = at + 1, #args do words[#words + 1] = args[i] end
	return reply, operation(c.db, key, 'XADD', words, 1, #words)
end)

write('XTRIM', function(c, args, key)
	local reply = run('XTRIM', args)
	if reply == 0 or failed(reply) then return reply end
	return reply, operation(c.db, key, 'XTRIM', {trimmed(key)}, 1, 3)
end, {frees = true})

each({{'XDEL', true}, {'XSETID', false}}, function(command, frees)
	write(command, function(c, args, key)
		local reply = run(command, args)
		if not reply or reply == 0 or failed(reply) then return reply end
		return reply, operation(c.db, key, command, args, 3, #args)
	end, {frees = frees})
end)

end
